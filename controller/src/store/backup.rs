//! Backup and restore of any store, as lines of JSON that a person can read: a head, an item a line, and a tail with their
//! number, so that a copy that was cut off is known. Touches the store through its trait alone, and the file that it is given.
//!
//! A restored store has a higher epoch, so that agents follow it although its revisions begin anew.

use std::{
    io::{self, BufRead, Write},
    time::SystemTime,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::{Deserialize, Serialize};

use super::{CommitError, Listing, Op, Precondition, Store, StoreError, Txn};

/// Version of the layout.
const FORMAT: u32 = 1;

/// One line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Line {
    Head {
        weir_store_backup: u32,
        store_uid: String,
        epoch: u64,
        revision: u64,
    },
    Item {
        key: String,
        #[serde(flatten)]
        value: Value,
    },
    Tail {
        items: usize,
        /// CRC-32 of all lines before, with their ends; copies of earlier versions have none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        crc32: Option<u32>,
    },
}

/// A value: as text where it is one.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Value {
    Text(String),
    Base64(String),
}

/// No backup, or no restore.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The file failed.
    #[error("the backup cannot be read or written: {0}")]
    Io(#[from] io::Error),
    /// The store to restore into holds something.
    #[error("the store holds {items} items already: restore into a new one, and nothing is lost")]
    NotEmpty {
        /// Their number.
        items: usize,
    },
    /// The file is no whole backup; nothing was restored.
    #[error("line {line} of the backup: {cause}; nothing was restored")]
    Damaged {
        /// Its number, from 1.
        line: usize,
        /// What is wrong.
        cause: String,
    },
    /// A commit did not take place.
    #[error("restoring stopped: {0}; the store is not complete, restore into a new one")]
    Commit(CommitError),
}

/// What a backup or a restore came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Items.
    pub items: usize,
    /// The store's epoch: of a restored store, its new one.
    pub epoch: u64,
}

/// The epoch to raise a store to, whatever copies of it were raised to before: seconds since 1970, or one more than `epoch`
/// where that is ahead of this machine's clock.
pub fn next_epoch(epoch: u64, now: SystemTime) -> u64 {
    let seconds = now.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    seconds.max(epoch.saturating_add(1))
}

/// Writes all items, as of one revision.
///
/// # Errors
/// The store cannot be read, or the file cannot be written.
pub async fn write(store: &impl Store, to: &mut impl Write) -> Result<Summary, BackupError> {
    let Listing { mut items, revision } = store.list("").await?;
    // Restoring creates them in this order: which intent is the older one decides between equals.
    items.sort_by_key(|item| item.create_revision);
    let head =
        Line::Head { weir_store_backup: FORMAT, store_uid: store.uid(), epoch: store.epoch(), revision: revision.0 };
    let mut crc = crc32fast::Hasher::new();
    put(to, &head, &mut crc)?;
    let count = items.len();
    for item in items {
        let value = match String::from_utf8(item.value) {
            Ok(text) => Value::Text(text),
            Err(bytes) => Value::Base64(STANDARD.encode(bytes.as_bytes())),
        };
        put(to, &Line::Item { key: item.key, value }, &mut crc)?;
    }
    let tail = Line::Tail { items: count, crc32: Some(crc.clone().finalize()) };
    put(to, &tail, &mut crc)?;
    to.flush()?;
    Ok(Summary { items: count, epoch: store.epoch() })
}

fn put(to: &mut impl Write, line: &Line, crc: &mut crc32fast::Hasher) -> Result<(), BackupError> {
    let mut text = serde_json::to_vec(line).map_err(io::Error::from)?;
    text.push(b'\n');
    crc.update(&text);
    to.write_all(&text)?;
    Ok(())
}

/// Puts the items of a backup into an empty store and raises its epoch above the backup's.
///
/// # Errors
/// See [`BackupError`].
pub async fn restore(store: &impl Store, backup: Backup, now: SystemTime) -> Result<Summary, BackupError> {
    let items = store.list("").await?.items.len();
    if items > 0 {
        return Err(BackupError::NotEmpty { items });
    }
    let Backup { epoch, items } = backup;
    let epoch = next_epoch(epoch.max(store.epoch()), now);
    // First of all: a restore that is cut off leaves a store that nobody takes for a continuation of the old one.
    store.raise_epoch(epoch).await?;
    let count = items.len();
    for (key, value) in items {
        // One commit each: together they would be of one age, and age decides between equals.
        let txn = Txn::default().when(Precondition::Absent(key.clone())).then(Op::Put(key, value));
        store.commit(txn).await.map_err(BackupError::Commit)?;
    }
    Ok(Summary { items: count, epoch })
}

type Items = Vec<(String, Vec<u8>)>;

/// A whole backup that was read.
#[derive(Debug)]
pub struct Backup {
    epoch: u64,
    items: Items,
}

/// Reads a backup to its end.
///
/// # Errors
/// It cannot be read, or is not whole: then there is nothing to restore from.
pub fn read(mut from: impl BufRead) -> Result<Backup, BackupError> {
    let (mut epoch, mut items, mut tail, mut last) = (None, Items::new(), None, 0);
    let mut crc = crc32fast::Hasher::new();
    let mut text = Vec::new();
    for number in 1.. {
        text.clear();
        if from.read_until(b'\n', &mut text)? == 0 {
            break;
        }
        let damaged = |cause: String| BackupError::Damaged { line: number, cause };
        let line: Line = serde_json::from_slice(&text).map_err(|error| damaged(error.to_string()))?;
        let before = crc.clone().finalize();
        crc.update(&text);
        last = number;
        match line {
            Line::Head { weir_store_backup, .. } if weir_store_backup > FORMAT => {
                return Err(damaged(format!(
                    "it has format {weir_store_backup}, this controller knows up to {FORMAT}"
                )));
            }
            Line::Head { epoch: found, .. } if number == 1 => epoch = Some(found),
            _ if epoch.is_none() => return Err(damaged("a backup begins with its head".to_owned())),
            _ if tail.is_some() => return Err(damaged("something follows the end".to_owned())),
            Line::Head { .. } => return Err(damaged("a second head".to_owned())),
            Line::Item { key, value } => {
                let value = match value {
                    Value::Text(text) => text.into_bytes(),
                    Value::Base64(text) => STANDARD.decode(text).map_err(|error| damaged(error.to_string()))?,
                };
                items.push((key, value));
            }
            Line::Tail { items: count, crc32: Some(expected) } if expected != before && count == items.len() => {
                return Err(damaged("its checksum is wrong: something before it was altered".to_owned()));
            }
            Line::Tail { items, .. } => tail = Some(items),
        }
    }
    match (epoch, tail) {
        (Some(epoch), Some(count)) if count == items.len() => Ok(Backup { epoch, items }),
        (_, Some(count)) => Err(BackupError::Damaged {
            line: last,
            cause: format!("{count} items were written, {} are here", items.len()),
        }),
        (_, None) => {
            let line = last.max(1);
            Err(BackupError::Damaged {
                line,
                cause: "the end is missing: the file was cut off, or is empty".to_owned(),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::store::EmbeddedStore;

    fn open(directory: &tempfile::TempDir, name: &str) -> EmbeddedStore {
        EmbeddedStore::open(&directory.path().join(name)).unwrap()
    }

    async fn filled(store: &EmbeddedStore) -> Vec<u8> {
        for (key, value) in [("b", "1".as_bytes()), ("a", &[0xff, 0]), ("c", b"{\"x\":1}")] {
            store.commit(Txn::default().then(Op::Put(key.into(), value.to_vec()))).await.unwrap();
        }
        let mut copy = Vec::new();
        assert_eq!(write(store, &mut copy).await.unwrap(), Summary { items: 3, epoch: 1 });
        copy
    }

    #[tokio::test]
    async fn what_is_restored_is_the_same_in_the_same_order_with_a_higher_epoch() {
        let directory = tempfile::tempdir().unwrap();
        let (old, new) = (open(&directory, "old"), open(&directory, "new"));
        let copy = filled(&old).await;
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
        assert_eq!(
            restore(&new, read(copy.as_slice()).unwrap(), now).await.unwrap(),
            Summary { items: 3, epoch: 1000 }
        );
        let contents = async |store: &EmbeddedStore| -> Vec<(String, Vec<u8>)> {
            let mut items = store.list("").await.unwrap().items;
            items.sort_by_key(|item| item.create_revision);
            items.into_iter().map(|item| (item.key, item.value)).collect()
        };
        assert_eq!(contents(&new).await, contents(&old).await);
        let again = restore(&new, read(copy.as_slice()).unwrap(), now).await.unwrap_err();
        assert!(matches!(again, BackupError::NotEmpty { items: 3 }));
    }

    #[tokio::test]
    async fn what_was_cut_off_or_altered_is_refused_whole() {
        let directory = tempfile::tempdir().unwrap();
        let copy = filled(&open(&directory, "old")).await;
        let text = String::from_utf8(copy).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let newer = text.replacen("\"weir_store_backup\":1", "\"weir_store_backup\":9", 1);
        let bad: [(String, &str); 7] = [
            (text.replacen("\"1\"", "\"2\"", 1), "checksum"),
            (lines[..4].join("\n"), "cut off"),
            ([lines[0], lines[1], lines[4]].join("\n"), "3 items were written"),
            (lines[1..].join("\n"), "begins with its head"),
            (text.replacen("\"key\"", "\"kye\"", 1), "line 2"),
            (newer, "format 9"),
            (String::new(), "cut off"),
        ];
        for (bad, why) in &bad {
            let error = read(bad.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(why), "{why}: {error}");
        }
        assert_eq!(read(text.as_bytes()).unwrap().items.len(), 3);
        // Copies of a version that knew no checksum.
        let end = text.rfind(",\"crc32\"").unwrap();
        assert_eq!(read(format!("{}}}}}\n", &text[..end]).as_bytes()).unwrap().items.len(), 3);
    }

    #[test]
    fn an_epoch_rises_also_where_the_clock_does_not() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        assert_eq!(next_epoch(1, at(500)), 500);
        assert_eq!(next_epoch(900, at(500)), 901);
        assert_eq!(next_epoch(u64::MAX, at(500)), u64::MAX);
    }
}
