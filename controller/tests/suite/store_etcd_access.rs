//! Getting into an etcd: users, permissions, TLS; and what is said where that fails.
#![cfg(feature = "etcd")]

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use etcd_client::{Client, Permission};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tokio_util::sync::CancellationToken;
use weir_controller::{
    leader::{Elect, Replica, ReplicaId, etcd::EtcdElect},
    store::{
        Op, Store, StoreError, Txn, Watch,
        etcd::{EtcdAccess, EtcdFlags, EtcdStore},
    },
};
use weir_tests::{
    etcd::{Etcd, ServerTls, Setup, missing},
    require,
};

fn file(directory: &Path, name: &str, text: &str) -> PathBuf {
    let path = directory.join(name);
    fs::write(&path, text).unwrap();
    path
}

async fn connect(location: &str, flags: &EtcdFlags) -> Result<EtcdStore, StoreError> {
    EtcdStore::connect(&location.parse().unwrap(), &EtcdAccess::load(flags).unwrap()).await
}

async fn refusal(location: &str, flags: &EtcdFlags) -> String {
    let error = connect(location, flags).await.expect_err("etcd should not let it in");
    error.to_string()
}

/// A store that works in everything it does.
async fn works(store: &EtcdStore) {
    let start = store.list("").await.unwrap().revision;
    let mut watch = store.watch("", start).await.unwrap();
    let revision = store.commit(Txn::default().then(Op::Put("a".into(), b"1".to_vec()))).await.unwrap();
    let change = tokio::time::timeout(Duration::from_secs(5), watch.next()).await.expect("a change").unwrap();
    assert_eq!(change.revision, revision);
    store.compact(revision).await.unwrap();
}

fn flags(directory: &Path, user: &str, password: &str) -> EtcdFlags {
    let etcd_password_file = Some(file(directory, &format!("{user}-{password}"), &format!("{password}\n")));
    EtcdFlags { etcd_user: Some(user.to_owned()), etcd_password_file, ..EtcdFlags::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn users_and_their_permissions() {
    if !require::met("users_and_their_permissions", &missing()) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    // Tokens that live for one second without use.
    let etcd = Etcd::with(&Setup { args: vec!["--auth-token-ttl=1".to_owned()], ..Setup::default() });
    let location = etcd.location("/w");
    let said = refusal(&location, &flags(directory.path(), "weir", "secret")).await;
    assert!(said.contains("knows no users"), "{said}");

    let root = Client::connect([etcd.address(0)], None).await.unwrap();
    let mut auth = root.auth_client();
    auth.user_add("root", "r", None).await.unwrap();
    auth.role_add("root").await.unwrap();
    auth.user_grant_role("root", "root").await.unwrap();
    auth.user_add("weir", "secret", None).await.unwrap();
    auth.user_add("other", "secret", None).await.unwrap();
    auth.role_add("weir").await.unwrap();
    let whole_prefix = Permission::read_write("/w/").with_prefix();
    auth.role_grant_permission("weir", whole_prefix).await.unwrap();
    auth.user_grant_role("weir", "weir").await.unwrap();
    auth.auth_enable().await.unwrap();

    let said = refusal(&location, &EtcdFlags::default()).await;
    assert!(said.contains("wants a user") && said.contains("--etcd-user"), "{said}");
    let said = refusal(&location, &flags(directory.path(), "weir", "wrong")).await;
    assert!(said.contains("--etcd-password-file"), "{said}");
    let said = refusal(&location, &flags(directory.path(), "other", "secret")).await;
    assert!(said.contains("grant-permission") && said.contains("readwrite"), "{said}");

    let weir = flags(directory.path(), "weir", "secret");
    let store = connect(&location, &weir).await.unwrap();
    works(&store).await;
    // The election needs no more than the same permission.
    let access = EtcdAccess::load(&weir).unwrap();
    let elect =
        EtcdElect::new(&location.parse().unwrap(), &access, ReplicaId::random(), Replica::at("127.0.0.1:1".into()));
    let (attending, shutdown) = (elect.clone(), CancellationToken::new());
    let ending = shutdown.clone();
    let attended = tokio::spawn(async move { attending.attend(ending).await });
    let leadership = tokio::time::timeout(Duration::from_secs(10), elect.campaign()).await.expect("it leads").unwrap();
    let mut replicas = elect.replicas();
    let entered = replicas.wait_for(|replicas| replicas.len() == 1);
    tokio::time::timeout(Duration::from_secs(10), entered).await.expect("it is entered").unwrap();
    // The tokens have run out meanwhile: nobody notices.
    tokio::time::sleep(Duration::from_secs(4)).await;
    works(&store).await;
    assert!(leadership.is_held());
    let fenced = leadership.fenced(Txn::default().then(Op::Put("b".into(), vec![])));
    store.commit(fenced).await.unwrap();
    shutdown.cancel();
    attended.await.unwrap();
}

/// An authority; its certificate as PEM, and what signs.
struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        Authority { pem, issuer: Issuer::new(params, key) }
    }

    /// Certificate and key for a name or address.
    fn sign(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_with_certificates_on_both_sides() {
    if !require::met("tls_with_certificates_on_both_sides", &missing()) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let (ours, other) = (Authority::new(), Authority::new());
    let (cert, key) = ours.sign("127.0.0.1");
    let ca = file(directory, "ca.pem", &ours.pem);
    let tls = ServerTls {
        cert: file(directory, "server.pem", &cert),
        key: file(directory, "server.key", &key),
        client_ca: Some(ca.clone()),
    };
    let etcd = Etcd::with(&Setup { tls: Some(tls), ..Setup::default() });
    let location = etcd.location("/w");
    let (cert, key) = ours.sign("weir");
    let (etcd_cert, etcd_key) = (file(directory, "client.pem", &cert), file(directory, "client.key", &key));
    let good =
        EtcdFlags { etcd_ca: Some(ca), etcd_cert: Some(etcd_cert), etcd_key: Some(etcd_key), ..EtcdFlags::default() };
    works(&connect(&location, &good).await.unwrap()).await;

    let wrong_ca = EtcdFlags { etcd_ca: Some(file(directory, "other.pem", &other.pem)), ..good.clone() };
    let said = refusal(&location, &wrong_ca).await;
    assert!(said.contains("--etcd-ca") && said.contains("not signed"), "{said}");
    let without = EtcdFlags { etcd_cert: None, etcd_key: None, ..good.clone() };
    let said = refusal(&location, &without).await;
    assert!(said.contains("--etcd-cert"), "{said}");
    let said = refusal(&location, &EtcdFlags::default()).await;
    assert!(said.contains("speaks TLS"), "{said}");

    // And the other way round: TLS to an etcd without.
    let plain = Etcd::start();
    let said = refusal(&plain.location("/w"), &good).await;
    assert!(said.contains("no TLS"), "{said}");
}

#[tokio::test]
async fn an_etcd_that_is_not_there_is_named() {
    let began = std::time::Instant::now();
    let said = refusal("etcd://127.0.0.1:1,127.0.0.1:2", &EtcdFlags::default()).await;
    assert!(said.contains("127.0.0.1:1") && said.contains("127.0.0.1:2"), "{said}");
    assert!(said.contains("is it running") && said.to_lowercase().contains("refused"), "{said}");
    assert!(began.elapsed() < Duration::from_secs(5));
}
