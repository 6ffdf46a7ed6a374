use std::{path::PathBuf, sync::atomic::AtomicUsize, sync::atomic::Ordering, time::Duration};

use super::*;
use crate::store::{Op, conformance};

struct Files {
    directory: tempfile::TempDir,
    made: AtomicUsize,
}

impl Files {
    fn new() -> Self {
        Files { directory: tempfile::tempdir().unwrap(), made: AtomicUsize::new(0) }
    }

    fn path(&self, number: usize) -> PathBuf {
        self.directory.path().join(format!("store{number}.redb"))
    }
}

/// Opens a store whose last user has just let go.
async fn open_soon(path: &Path) -> EmbeddedStore {
    for _ in 0..500 {
        match EmbeddedStore::open(path) {
            Err(OpenError::InUse { .. }) => tokio::time::sleep(Duration::from_millis(10)).await,
            other => return other.unwrap(),
        }
    }
    panic!("{} was not released", path.display());
}

impl conformance::Harness for Files {
    type Store = EmbeddedStore;

    async fn fresh(&self) -> EmbeddedStore {
        EmbeddedStore::open(&self.path(self.made.fetch_add(1, Ordering::SeqCst) + 1)).unwrap()
    }

    async fn reopen(&self, store: EmbeddedStore) -> EmbeddedStore {
        drop(store);
        // The suite reopens the store that it made last.
        open_soon(&self.path(self.made.load(Ordering::SeqCst))).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn conforms() {
    conformance::all(&Files::new()).await;
}

/// What the suite does not ask of every backend: this one counts its own commits alone.
#[tokio::test]
async fn revisions_have_no_gap() {
    let files = Files::new();
    let store = EmbeddedStore::open(&files.path(0)).unwrap();
    assert_eq!(store.revision().await.unwrap(), Revision(1));
    assert_eq!(store.commit(put("a", b"1")).await.unwrap(), Revision(2));
    assert_eq!(store.commit(Txn::default().then(Op::Delete("b".into()))).await.unwrap(), Revision(2));
    store.commit(put("a", b"2").when(crate::store::Precondition::Absent("a".into()))).await.unwrap_err();
    store.compact(Revision(2)).await.unwrap();
    assert_eq!(store.revision().await.unwrap(), Revision(2));
    assert_eq!(store.commit(Txn::default().then(Op::Delete("a".into()))).await.unwrap(), Revision(3));
}

fn put(key: &str, value: &[u8]) -> Txn {
    Txn::default().then(Op::Put(key.to_owned(), value.to_vec()))
}

#[tokio::test]
async fn a_second_user_is_told_who_and_what_to_do() {
    let files = Files::new();
    let first = EmbeddedStore::open(&files.path(0)).unwrap();
    let error = EmbeddedStore::open(&files.path(0)).unwrap_err();
    assert!(matches!(error, OpenError::InUse { .. }), "{error}");
    assert!(error.to_string().contains("--store"), "{error}");
    first.commit(put("a", b"1")).await.unwrap();
    drop(first);
    assert!(open_soon(&files.path(0)).await.get("a").await.unwrap().is_some());
}

async fn filled(path: &Path) -> Vec<u8> {
    let store = EmbeddedStore::open(path).unwrap();
    for i in 0..50u32 {
        store.commit(put(&format!("key{i}"), &[1; 300])).await.unwrap();
    }
    drop(store);
    drop(open_soon(path).await);
    for _ in 0..500 {
        if File::open(path).unwrap().try_lock().is_ok() {
            return std::fs::read(path).unwrap();
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("not released");
}

use std::fs::File;

fn refused_and_untouched(path: &Path, content: &[u8]) -> OpenError {
    std::fs::write(path, content).unwrap();
    let error = EmbeddedStore::open(path).unwrap_err();
    assert!(std::fs::read(path).unwrap() == content, "the file was changed: {error}");
    error
}

#[tokio::test]
async fn a_file_that_is_no_store_is_refused_and_left_alone() {
    let files = Files::new();
    let path = files.path(0);
    let good = filled(&path).await;
    for (name, content) in [
        ("text", b"just some text\n".repeat(1000)),
        ("empty", Vec::new()),
        ("zeros", vec![0; good.len()]),
        ("cut", good[..good.len() / 2].to_vec()),
        ("stub", good[..100].to_vec()),
    ] {
        let error = refused_and_untouched(&path, &content);
        assert!(matches!(error, OpenError::Damaged { .. }), "{name}: {error}");
        assert!(error.to_string().contains("move it away"), "{error}");
    }
    std::fs::write(&path, &good).unwrap();
    assert_eq!(EmbeddedStore::open(&path).unwrap().list("").await.unwrap().items.len(), 50);
}

#[tokio::test]
async fn flipped_bits_are_never_a_panic_nor_other_data() {
    let files = Files::new();
    let path = files.path(0);
    let good = filled(&path).await;
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..40 {
        let mut content = good.clone();
        for _ in 0..20 {
            content[random.usize(..good.len())] ^= 1 << random.u8(..8);
        }
        std::fs::write(&path, &content).unwrap();
        match EmbeddedStore::open(&path) {
            // Bits of pages that nothing points to do no harm.
            Ok(store) => assert!(store.list("").await.unwrap().items.iter().all(|item| item.value == [1; 300])),
            Err(error) => {
                assert!(matches!(error, OpenError::Damaged { .. } | OpenError::NewerFormat { .. }), "{error}");
                assert!(std::fs::read(&path).unwrap() == content, "the file was changed: {error}");
            }
        }
        // Another file each time: the last store may not have let go yet.
        std::fs::remove_file(&path).unwrap();
    }
}

#[tokio::test]
async fn a_newer_format_is_refused_and_left_alone() {
    let files = Files::new();
    let path = files.path(0);
    filled(&path).await;
    let db = Database::open(&path).unwrap();
    let txn = db.begin_write().unwrap();
    txn.open_table(META).unwrap().insert(FORMAT, FORMAT_VERSION + 1).unwrap();
    txn.commit().unwrap();
    drop(db);
    let newer = std::fs::read(&path).unwrap();
    let error = refused_and_untouched(&path, &newer);
    assert!(matches!(error, OpenError::NewerFormat { found: 2, known: 1, .. }), "{error}");
}

#[tokio::test]
async fn what_an_attempt_left_is_no_obstacle() {
    let files = Files::new();
    std::fs::write(files.directory.path().join("store0.redb.new"), b"half a file").unwrap();
    EmbeddedStore::open(&files.path(0)).unwrap().commit(put("a", b"1")).await.unwrap();
    assert!(EmbeddedStore::open(&files.directory.path().join("missing/store.redb")).is_err());
}

#[tokio::test]
async fn nothing_is_acknowledged_into_a_file_that_was_removed() {
    let files = Files::new();
    let path = files.path(1);
    let store = EmbeddedStore::open(&path).unwrap();
    store.commit(put("a", b"1")).await.unwrap();
    store.verify().await.unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(store.verify().await, Err(StoreError::Replaced(_))));
    let error = store.commit(put("b", b"2")).await.unwrap_err();
    assert!(matches!(error, CommitError::Store(StoreError::Replaced(_))), "{error}");
    let error = store.commit(put("c", b"3")).await.unwrap_err();
    assert!(matches!(error, CommitError::Store(StoreError::Closed(_))), "{error}");
    assert!(error.to_string().contains("was removed"), "the cause is told for ever: {error}");
}
