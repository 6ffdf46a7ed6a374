//! The store on a real etcd: the suite that every backend passes, beside a neighbour who raises etcd's revision.
#![cfg(feature = "etcd")]

use std::sync::atomic::{AtomicUsize, Ordering};

use weir_controller::store::{
    conformance,
    etcd::{EtcdAccess, EtcdStore},
};
use weir_tests::{
    etcd::{Etcd, missing},
    require,
};

struct Prefixes<'a> {
    etcd: &'a Etcd,
    made: AtomicUsize,
}

impl Prefixes<'_> {
    async fn open(&self, number: usize) -> EtcdStore {
        let location = self.etcd.location(&format!("/t{number}")).parse().unwrap();
        EtcdStore::connect(&location, &EtcdAccess::default()).await.unwrap()
    }
}

impl conformance::Harness for Prefixes<'_> {
    type Store = EtcdStore;

    async fn fresh(&self) -> EtcdStore {
        self.open(self.made.fetch_add(1, Ordering::SeqCst) + 1).await
    }

    async fn reopen(&self, store: EtcdStore) -> EtcdStore {
        drop(store);
        // The suite reopens the store that it made last.
        self.open(self.made.load(Ordering::SeqCst)).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn conforms_beside_a_neighbour() {
    if !require::met("conforms_beside_a_neighbour", &missing()) {
        return;
    }
    let etcd = Etcd::start();
    let address = format!("http://{}", etcd.address(0));
    let neighbour = tokio::spawn(async move {
        let mut client = etcd_client::Client::connect([address], None).await.unwrap();
        loop {
            client.put("/other/noise", "x", None).await.unwrap();
            tokio::time::sleep(std::time::Duration::from_millis(3)).await;
        }
    });
    conformance::all(&Prefixes { etcd: &etcd, made: AtomicUsize::new(0) }).await;
    neighbour.abort();
    assert!(neighbour.await.unwrap_err().is_cancelled(), "it wrote all the time");
}
