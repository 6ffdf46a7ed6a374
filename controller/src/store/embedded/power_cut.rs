//! What is left after a power cut, at many points: a storage that forgets what was not synced.

use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, Mutex},
};

use redb::StorageBackend;

use super::EmbeddedStore;
use crate::store::{Event, Op, Revision, Store, Txn, Watch};

/// What the disk really has, what the process sees, and when the power goes.
#[derive(Debug, Default)]
struct Disk {
    synced: Vec<u8>,
    seen: Vec<u8>,
    /// Writes since the last sync: places and bytes.
    pending: Vec<(usize, Vec<u8>)>,
    /// Writes, resizes and syncs until the power goes; `None`: never.
    left: Option<usize>,
    operations: usize,
}

impl Disk {
    fn step(&mut self) -> io::Result<()> {
        self.operations += 1;
        match &mut self.left {
            Some(0) => Err(io::Error::other("the power is off")),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

#[derive(Clone, Debug, Default)]
struct Dropping(Arc<Mutex<Disk>>);

impl StorageBackend for Dropping {
    fn len(&self) -> Result<u64, io::Error> {
        Ok(self.0.lock().unwrap().seen.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), io::Error> {
        let disk = self.0.lock().unwrap();
        let start = usize::try_from(offset).unwrap();
        let from = disk.seen.get(start..start + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(from);
        Ok(())
    }

    fn set_len(&self, len: u64) -> Result<(), io::Error> {
        let mut disk = self.0.lock().unwrap();
        disk.step()?;
        disk.seen.resize(usize::try_from(len).unwrap(), 0);
        Ok(())
    }

    fn sync_data(&self) -> Result<(), io::Error> {
        let mut disk = self.0.lock().unwrap();
        disk.step()?;
        disk.synced = disk.seen.clone();
        disk.pending.clear();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), io::Error> {
        let mut disk = self.0.lock().unwrap();
        disk.step()?;
        let start = usize::try_from(offset).unwrap();
        disk.seen[start..start + data.len()].copy_from_slice(data);
        disk.pending.push((start, data.to_vec()));
        Ok(())
    }
}

impl Dropping {
    fn with(content: Vec<u8>, left: Option<usize>) -> Self {
        let disk = Disk { synced: content.clone(), seen: content, left, ..Disk::default() };
        Dropping(Arc::new(Mutex::new(disk)))
    }

    /// The disk after the cut. With a `seed` some of the writes that were not synced reached it all the same.
    fn after_the_cut(&self, seed: Option<u64>) -> Vec<u8> {
        let disk = self.0.lock().unwrap();
        let mut content = disk.synced.clone();
        if let Some(seed) = seed {
            let mut random = fastrand::Rng::with_seed(seed);
            content.resize(content.len().max(disk.seen.len()), 0);
            for (start, data) in &disk.pending {
                if random.bool() && start + data.len() <= content.len() {
                    content[*start..start + data.len()].copy_from_slice(data);
                }
            }
        }
        content
    }
}

fn pair(i: u64) -> Txn {
    // Two keys that always agree: half a transaction would show.
    let value = i.to_string().into_bytes();
    let (left, right) = (format!("left{}", i % 7), format!("right{}", i % 7));
    Txn::default().then(Op::Put(left, value.clone())).then(Op::Put(right, value))
}

/// Commits pairs until the power goes; what was acknowledged, by revision.
async fn commit_until_dark(disk: &Dropping, commits: u64) -> BTreeMap<Revision, u64> {
    let mut acknowledged = BTreeMap::new();
    let Ok(store) = EmbeddedStore::with_backend(disk.clone()) else { return acknowledged };
    for i in 0..commits {
        match store.commit(pair(i)).await {
            Ok(revision) => drop(acknowledged.insert(revision, i)),
            Err(error) => {
                assert!(error.is_retryable());
                break;
            }
        }
    }
    acknowledged
}

async fn check(content: Vec<u8>, acknowledged: &BTreeMap<Revision, u64>, context: &str) {
    let store = EmbeddedStore::with_backend(Dropping::with(content, None)).unwrap_or_else(|e| panic!("{context}: {e}"));
    let listing = store.list("").await.unwrap();
    let last = acknowledged.keys().next_back().copied().unwrap_or(Revision(1));
    // The commit under way may have become durable without an answer; no more than that one.
    assert!(listing.revision >= last && listing.revision.0 <= last.0 + 1, "{context}: {} {last}", listing.revision);
    let values: BTreeMap<&str, &[u8]> = listing.items.iter().map(|i| (i.key.as_str(), i.value.as_slice())).collect();
    for slot in 0..7 {
        let (left, right) = (format!("left{slot}"), format!("right{slot}"));
        assert_eq!(values.get(left.as_str()), values.get(right.as_str()), "{context}: half a transaction");
    }
    // The log has every acknowledged commit, whole.
    let mut watch = store.watch("", Revision(1)).await.unwrap();
    for (revision, i) in acknowledged {
        let change = watch.next().await.unwrap();
        assert_eq!((change.revision, change.events.len()), (*revision, 2), "{context}");
        assert!(
            change.events.iter().all(|event| matches!(event, Event::Put(item)
            if item.value == i.to_string().into_bytes())),
            "{context}"
        );
    }
    // And the store goes on.
    assert_eq!(store.commit(pair(99)).await.unwrap().0, listing.revision.0 + 1, "{context}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_acknowledged_commit_survives_a_power_cut_and_none_is_half_done() {
    const COMMITS: u64 = 12;
    // A store that exists already: making a file is atomic by renaming, not by the storage.
    let made = Dropping::default();
    drop(EmbeddedStore::with_backend(made.clone()).unwrap());
    wait_until_released(&made).await;
    let content = made.after_the_cut(None);

    let counting = Dropping::with(content.clone(), None);
    assert_eq!(commit_until_dark(&counting, COMMITS).await.len() as u64, COMMITS);
    wait_until_released(&counting).await;
    let operations = counting.0.lock().unwrap().operations;
    assert!(operations > 20, "{operations}");
    let mut cuts_with_loss = 0;
    for cut in 0..operations {
        let disk = Dropping::with(content.clone(), Some(cut));
        let acknowledged = commit_until_dark(&disk, COMMITS).await;
        cuts_with_loss += u64::from((acknowledged.len() as u64) < COMMITS);
        check(disk.after_the_cut(None), &acknowledged, &format!("cut at {cut}")).await;
        for seed in 0..2 {
            check(disk.after_the_cut(Some(seed)), &acknowledged, &format!("cut at {cut}, torn by {seed}")).await;
        }
    }
    assert!(cuts_with_loss > COMMITS, "the cuts hit the middle of commits: {cuts_with_loss}");
}

/// The store's own references to the disk are gone once its writer has ended.
async fn wait_until_released(disk: &Dropping) {
    for _ in 0..500 {
        if Arc::strong_count(&disk.0) == 1 {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("the store was not released");
}
