//! Leadership on a real etcd: one at a time, known to be over in time, and fenced.
#![cfg(feature = "etcd")]

use std::{
    process::Command,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use tokio_util::sync::CancellationToken;
use weir_controller::{
    leader::{Elect, Leadership, Replica, ReplicaId, etcd::EtcdElect},
    store::{
        CommitError, Op, Store, Txn,
        etcd::{EtcdAccess, EtcdStore},
    },
};
use weir_tests::{
    etcd::{Etcd, missing},
    process::Daemon,
    require,
};

/// More than a lease lives, with room for a busy machine.
const TERM: Duration = Duration::from_secs(12);

struct Candidate {
    elect: EtcdElect,
    store: EtcdStore,
    id: ReplicaId,
    shutdown: CancellationToken,
}

impl Candidate {
    async fn start(etcd: &Etcd) -> Self {
        let (location, access) = (etcd.location("/w").parse().unwrap(), EtcdAccess::default());
        let id = ReplicaId::random();
        let elect = EtcdElect::new(&location, &access, id.clone(), Replica::at(format!("{id}:1")));
        let store = EtcdStore::connect(&location, &access).await.unwrap();
        let shutdown = CancellationToken::new();
        let (attending, ending) = (elect.clone(), shutdown.clone());
        tokio::spawn(async move { attending.attend(ending).await });
        Candidate { elect, store, id, shutdown }
    }

    async fn leads(&self) -> Leadership {
        tokio::time::timeout(TERM, self.elect.campaign()).await.expect("it leads in time").unwrap()
    }

    async fn write(&self, leadership: &Leadership) -> Result<(), CommitError> {
        let txn = Txn::default().then(Op::Put("written-by".into(), self.id.to_string().into_bytes()));
        self.store.commit(leadership.fenced(txn)).await.map(drop)
    }
}

fn refused(result: Result<(), CommitError>) {
    match result {
        Err(CommitError::Conflict { key, .. }) => assert_eq!(key, "//leader"),
        other => panic!("the guard should have refused it: {other:?}"),
    }
}

async fn lost(leadership: &Leadership, within: Duration) {
    tokio::time::timeout(within, leadership.lost.cancelled()).await.expect("the loss is known in time");
    assert!(!leadership.is_held());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_second_leads_once_the_firsts_lease_is_revoked() {
    if !require::met("the_second_leads_once_the_firsts_lease_is_revoked", &missing()) {
        return;
    }
    let etcd = Etcd::start();
    let (one, two) = (Candidate::start(&etcd).await, Candidate::start(&etcd).await);
    let first = one.leads().await;
    one.write(&first).await.unwrap();
    let waiting = tokio::time::timeout(Duration::from_secs(1), two.elect.campaign()).await;
    assert!(waiting.is_err(), "there is one leader");
    let mut replicas = two.elect.replicas();
    let both = replicas.wait_for(|replicas| replicas.len() == 2);
    let both = tokio::time::timeout(TERM, both).await.expect("both are listed").unwrap().clone();
    assert_eq!(both[&one.id].address, format!("{}:1", one.id));

    let mut client = etcd_client::Client::connect([etcd.address(0)], None).await.unwrap();
    let lease = client.get("/w/meta/leader", None).await.unwrap().kvs()[0].lease();
    client.lease_revoke(lease).await.unwrap();
    let second = two.leads().await;
    lost(&first, Duration::from_secs(2)).await;
    refused(one.write(&first).await);
    two.write(&second).await.unwrap();
    // The first takes another lease, and is there again.
    replicas.mark_unchanged();
    let back = replicas.wait_for(|replicas| replicas.contains_key(&one.id));
    tokio::time::timeout(TERM, back).await.expect("it is entered again").unwrap();
    assert!(second.is_held());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_somebody_removed_is_a_loss() {
    if !require::met("a_key_that_somebody_removed_is_a_loss", &missing()) {
        return;
    }
    let etcd = Etcd::start();
    let one = Candidate::start(&etcd).await;
    let first = one.leads().await;
    let mut client = etcd_client::Client::connect([etcd.address(0)], None).await.unwrap();
    client.delete("/w/meta/leader", None).await.unwrap();
    refused(one.write(&first).await);
    lost(&first, Duration::from_secs(3)).await;
    let again = one.leads().await;
    refused(one.write(&first).await);
    one.write(&again).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn who_gives_up_or_ends_makes_nobody_wait() {
    if !require::met("who_gives_up_or_ends_makes_nobody_wait", &missing()) {
        return;
    }
    let etcd = Etcd::start();
    let (one, two) = (Candidate::start(&etcd).await, Candidate::start(&etcd).await);
    let first = one.leads().await;
    drop(first);
    let began = Instant::now();
    let second = two.leads().await;
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    two.shutdown.cancel();
    let began = Instant::now();
    let third = one.leads().await;
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    assert!(third.is_held() && !second.is_held());
    let mut replicas = one.elect.replicas();
    let alone = replicas.wait_for(|replicas| replicas.len() == 1 && replicas.contains_key(&one.id));
    tokio::time::timeout(Duration::from_secs(3), alone).await.expect("who ended is gone").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn without_etcd_leadership_ends_by_the_own_clock() {
    if !require::met("without_etcd_leadership_ends_by_the_own_clock", &missing()) {
        return;
    }
    let etcd = Etcd::start();
    let one = Candidate::start(&etcd).await;
    let first = one.leads().await;
    etcd.pause(0);
    // The lease lives 5 s from the last sign of life; this side gives up 1 s earlier.
    lost(&first, Duration::from_millis(4_800)).await;
    etcd.resume(0);
    let again = one.leads().await;
    one.write(&again).await.unwrap();
}

/// Starts the controller's program on this etcd.
fn controller(etcd: &Etcd, log: &std::path::Path) -> Daemon {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir-controller"));
    command.args(["--listen", "127.0.0.1:0", "--store", &etcd.location("/w")]);
    Daemon::start_command(command, "listening on", log).unwrap()
}

/// Waits until a line of a log has `mark` for the `count`th time.
fn logged(daemon: &Daemon, mark: &str, count: usize) {
    let began = Instant::now();
    while std::fs::read_to_string(&daemon.log).unwrap().matches(mark).count() < count {
        assert!(began.elapsed() < TERM, "no {mark:?} in:\n{}", daemon.log_tail());
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn controllers_take_over_from_one_that_is_paused_or_killed() {
    if !require::met("controllers_take_over_from_one_that_is_paused_or_killed", &missing()) {
        return;
    }
    let etcd = Etcd::start();
    let directory = tempfile::tempdir().unwrap();
    let one = controller(&etcd, &directory.path().join("one.log"));
    logged(&one, "this controller leads", 1);
    let mut two = controller(&etcd, &directory.path().join("two.log"));
    one.signal(Signal::STOP);
    logged(&two, "this controller leads", 1);
    one.signal(Signal::CONT);
    logged(&one, "no longer leads", 1);
    two.kill();
    logged(&one, "this controller leads", 2);
    let mut one = one;
    assert!(one.stop(), "it ends in order: {}", one.log_tail());
}
