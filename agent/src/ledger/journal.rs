//! The journal: one checked line a record, appended and synced before what it announces happens. A torn last line is a crash
//! in mid-write and is cut off; a damaged one before others is corruption: the file is set aside and all that can still be
//! read is carried over, so that nothing is released by accident.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Seek as _, Write as _},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use weir_common::{fence::Fence, units::LimitValue};

use super::{OpenError, Owned, Pending, Quarantine, files, set_aside};
use crate::resolve::SettingKey;

/// Version of the formats of journal and plan.
pub const FORMAT: u32 = 1;

/// Above this size a journal whose records are mostly outlived is written anew, bytes.
const COMPACT_ABOVE: u64 = 256 * 1024;

#[derive(Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "snake_case")]
enum Record {
    /// First line.
    Header { format: u32, boot_id: String },
    /// A setting is about to be touched for the first time.
    Own {
        #[serde(flatten)]
        key: SettingKey,
        baseline: LimitValue,
    },
    /// A value is about to be written.
    Writing {
        #[serde(flatten)]
        key: SettingKey,
        /// What the kernel was seen to hold just before.
        observed: LimitValue,
        value: LimitValue,
        fence: Fence,
        uid: String,
    },
    /// Everything at once, as compaction has it.
    Owned {
        #[serde(flatten)]
        key: SettingKey,
        owned: Owned,
    },
    /// The setting is no longer owned.
    Forget {
        #[serde(flatten)]
        key: SettingKey,
    },
}

#[derive(Debug)]
pub(super) struct Journal {
    path: PathBuf,
    boot_id: String,
    /// `None` where the file could not be written at the start.
    file: Option<File>,
    /// Length up to which the file is known to be whole and durable.
    length: u64,
    owned: BTreeMap<SettingKey, Owned>,
    /// The file could not be brought back to `length` after a failed append: it must be written anew first.
    broken: bool,
}

impl Journal {
    pub(super) fn open(path: &Path, boot_id: &str) -> Result<(Journal, Option<Quarantine>), OpenError> {
        let fail = |step, source| OpenError::Io { step, path: path.to_owned(), source };
        let bytes = match fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(fail("read", error)),
        };
        let replayed = replay(&bytes, boot_id);
        if let Some(found) = replayed.newer {
            return Err(OpenError::NewerFormat { path: path.to_owned(), found, known: FORMAT });
        }
        let quarantine = match replayed.damage {
            Some(cause) => Some(set_aside(path, false, cause)?),
            None => None,
        };
        // Written anew at each start: that cuts off a torn end and carries over what a damaged file still had.
        let written = write_whole(path, boot_id, &replayed.owned);
        let (file, length) = match written {
            Ok((file, length)) => (Some(file), length),
            // There is nothing yet that would be lost by not starting.
            Err(source) if bytes.is_empty() => return Err(fail("write", source)),
            Err(error) => {
                tracing::error!(
                    %error,
                    path = %path.display(),
                    "the journal cannot be written: what is owned is known, and can be put back; nothing new is enforced \
                     until there is space and the file system can be written"
                );
                (None, 0)
            }
        };
        let journal = Journal {
            path: path.to_owned(),
            boot_id: boot_id.to_owned(),
            broken: file.is_none(),
            file,
            length,
            owned: replayed.owned,
        };
        Ok((journal, quarantine))
    }

    pub(super) fn owned(&self) -> &BTreeMap<SettingKey, Owned> {
        &self.owned
    }

    pub(super) fn begin(&mut self, pending: &[Pending]) -> io::Result<()> {
        let mut records = Vec::new();
        for write in pending {
            if !self.owned.contains_key(&write.key) {
                records.push(Record::Own { key: write.key.clone(), baseline: write.baseline });
            }
            records.push(Record::Writing {
                key: write.key.clone(),
                observed: write.held,
                value: write.value,
                fence: write.fence,
                uid: write.uid.clone(),
            });
        }
        self.append(records)
    }

    pub(super) fn forget(&mut self, keys: &[SettingKey]) -> io::Result<()> {
        self.append(keys.iter().map(|key| Record::Forget { key: key.clone() }).collect())
    }

    /// Appends records, makes them durable, and only then takes them into account.
    fn append(&mut self, records: Vec<Record>) -> io::Result<()> {
        if records.is_empty() {
            return Ok(());
        }
        let file = match &mut self.file {
            Some(file) if !self.broken && self.length <= COMPACT_ABOVE.max(live_bytes(&self.owned) * 4) => file,
            _ => {
                let (file, length) = write_whole(&self.path, &self.boot_id, &self.owned)?;
                (self.length, self.broken) = (length, false);
                self.file.insert(file)
            }
        };
        let mut text = String::new();
        for record in &records {
            text.push_str(&files::checked_line(&serde_json::to_string(record).map_err(io::Error::other)?));
        }
        let appended = file.write_all(text.as_bytes()).and_then(|()| file.sync_data());
        if let Err(error) = appended {
            let restored = file.set_len(self.length).and_then(|()| file.seek(io::SeekFrom::End(0)));
            self.broken = restored.is_err();
            return Err(error);
        }
        self.length += text.len() as u64;
        for record in records {
            apply(&mut self.owned, record);
        }
        Ok(())
    }
}

/// About what the live records would take.
fn live_bytes(owned: &BTreeMap<SettingKey, Owned>) -> u64 {
    owned.len() as u64 * 400
}

struct Replayed {
    owned: BTreeMap<SettingKey, Owned>,
    damage: Option<String>,
    newer: Option<u32>,
}

/// What a journal's bytes say.
fn replay(bytes: &[u8], boot_id: &str) -> Replayed {
    let mut replayed = Replayed { owned: BTreeMap::new(), damage: None, newer: None };
    let mut same_boot = true;
    let mut bad: Option<usize> = None;
    let mut first = true;
    for (number, line) in bytes.split_inclusive(|byte| *byte == b'\n').enumerate() {
        let whole = line.strip_suffix(b"\n").and_then(|line| std::str::from_utf8(line).ok());
        let record = whole.and_then(files::verify_line).and_then(|text| serde_json::from_str::<Record>(text).ok());
        let Some(record) = record else {
            bad = bad.or(Some(number + 1));
            // A first line that cannot be read is no torn end: nothing was ever appended to a file without a header.
            if std::mem::take(&mut first) {
                replayed.damage = Some("line 1 is damaged".to_owned());
            }
            continue;
        };
        first = false;
        if let Some(bad) = bad {
            replayed.damage = Some(format!("line {bad} is damaged, and others follow it"));
        }
        match record {
            Record::Header { format, .. } if format > FORMAT => {
                replayed.newer = Some(format);
                return replayed;
            }
            Record::Header { boot_id: written, .. } => same_boot = written == boot_id,
            record => apply(&mut replayed.owned, record),
        }
    }
    if !same_boot {
        // Cgroups, their ids and their limits do not outlive the kernel that made them.
        replayed.owned.clear();
    }
    replayed
}

fn apply(owned: &mut BTreeMap<SettingKey, Owned>, record: Record) {
    match record {
        Record::Header { .. } => {}
        Record::Own { key, baseline } => {
            // The first writer's baseline stays.
            owned.entry(key).or_insert_with(|| Owned {
                baseline,
                written: baseline,
                earlier: None,
                fence: Fence::default(),
                uid: String::new(),
            });
        }
        Record::Writing { key, observed, value, fence, uid } => {
            // Without a line that was lost with its baseline: what is written is ours, and none was before as far as is known.
            let entry = owned.entry(key).or_insert_with(|| Owned {
                baseline: LimitValue::Unlimited,
                written: value,
                earlier: None,
                fence,
                uid: String::new(),
            });
            // A write that failed leaves what was there: what the kernel was seen to hold stays ours, however many writes are
            // announced after it and fail.
            if entry.is_ours(observed) {
                entry.earlier = Some(observed);
            }
            (entry.written, entry.fence, entry.uid) = (value, fence, uid);
        }
        Record::Owned { key, owned: whole } => {
            owned.insert(key, whole);
        }
        Record::Forget { key } => {
            owned.remove(&key);
        }
    }
}

/// Writes a whole new journal in the old one's place; returns it open at its end.
fn write_whole(path: &Path, boot_id: &str, owned: &BTreeMap<SettingKey, Owned>) -> io::Result<(File, u64)> {
    let header = Record::Header { format: FORMAT, boot_id: boot_id.to_owned() };
    let records = owned.iter().map(|(key, owned)| Record::Owned { key: key.clone(), owned: owned.clone() });
    let mut text = String::new();
    for record in std::iter::once(header).chain(records) {
        text.push_str(&files::checked_line(&serde_json::to_string(&record).map_err(io::Error::other)?));
    }
    files::replace(path, text.as_bytes())?;
    let file = File::options().append(true).open(path)?;
    Ok((file, text.len() as u64))
}
