//! What must survive any end of the agent, in its state directory: the lock against a second agent, the node's identity, the
//! accepted plan, and the journal of settings that Weir owns in the kernel with the value that each had before.
//!
//! May touch the state directory alone. Nothing is written to the kernel before its record here is durable, and nothing is
//! forgotten before the kernel was read back.

mod files;
mod journal;
mod lock;

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use weir_common::{fence::Fence, units::LimitValue};

pub(crate) use files::replace;
pub use journal::FORMAT;
pub use lock::{Lock, LockError};

use crate::{plan::Plan, resolve::SettingKey};

/// A setting that Weir owns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owned {
    /// The value before the first touch; never changes while the setting is owned.
    pub baseline: LimitValue,
    /// What was last written, or was about to be when the agent ended.
    pub written: LimitValue,
    /// What the kernel was last seen to hold of ours: it still does where the agent ended before its last write, or that failed.
    pub earlier: Option<LimitValue>,
    /// Fence of the plan for which it was written.
    pub fence: Fence,
    /// Intent for which it was written.
    pub uid: String,
}

impl Owned {
    /// Whether a value in the kernel is Weir's.
    pub fn is_ours(&self, value: LimitValue) -> bool {
        value == self.written || self.earlier == Some(value)
    }
}

/// A write that is about to happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    /// The setting.
    pub key: SettingKey,
    /// The value before the first touch, where the setting is not owned yet.
    pub baseline: LimitValue,
    /// What the kernel holds now.
    pub held: LimitValue,
    /// What will be written.
    pub value: LimitValue,
    /// For which plan.
    pub fence: Fence,
    /// For which intent.
    pub uid: String,
}

/// Something was damaged, and was set aside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quarantine {
    /// It was the plan (else the journal).
    pub plan: bool,
    /// Where the damaged file is now.
    pub kept_as: PathBuf,
    /// What was wrong.
    pub cause: String,
}

/// The ledger cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// No agent has kept state in this directory.
    #[error("{path} holds no state of an agent; say with --state-dir where the agent keeps it")]
    NoState {
        /// The directory.
        path: PathBuf,
    },
    /// Another agent, or a release, has it.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// A file or directory cannot be read or written.
    #[error("{step} {path}: {source}")]
    Io {
        /// What was tried.
        step: &'static str,
        /// On what.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// It was written by a newer version, which may mean more by it than this one understands.
    #[error(
        "{path} has format version {found}, this agent knows up to {known}: use the newer agent, or release with it first"
    )]
    NewerFormat {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// What this agent knows.
        known: u32,
    },
}

/// The ledger. Holds the lock while it lives.
#[derive(Debug)]
pub struct Ledger {
    dir: PathBuf,
    node_uid: String,
    plan: Option<Plan>,
    journal: journal::Journal,
    journal_lost: bool,
    _lock: Lock,
}

#[derive(Serialize, Deserialize)]
struct PlanFile {
    format: u32,
    plan: Plan,
}

impl Ledger {
    /// Opens, or makes, the ledger in `dir`. `boot_id` names the kernel's present life: what was owned in another is gone
    /// with it. Returns what had to be set aside.
    ///
    /// # Errors
    /// Why it cannot be used; then nothing was changed.
    pub fn open(dir: &Path, boot_id: &str) -> Result<(Ledger, Vec<Quarantine>), OpenError> {
        let fail = |step, path: &Path| {
            let path = path.to_owned();
            move |source| OpenError::Io { step, path, source }
        };
        std::fs::create_dir_all(dir).map_err(fail("create the directory", dir))?;
        let lock = Lock::take(dir)?;
        let mut quarantined = Vec::new();

        let uid_file = dir.join("node-uid");
        // A journal has a line from the first moment on: without one, what was owned is not known any more. That is another
        // ledger, and controllers say so of the node (LedgerReplaced).
        let lost = std::fs::metadata(dir.join("journal")).map_or(true, |journal| journal.len() == 0);
        let begun = uid_file.exists();
        let node_uid = match std::fs::read_to_string(&uid_file) {
            Ok(text) if !text.trim().is_empty() && lost => {
                let path = dir.join("journal");
                tracing::error!(path = %path.display(), "the journal was lost: limits that this agent wrote may be there");
                new_uid(&uid_file).map_err(fail("write", &uid_file))?
            }
            Ok(text) if !text.trim().is_empty() => text.trim().to_owned(),
            Ok(_) => new_uid(&uid_file).map_err(fail("write", &uid_file))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                new_uid(&uid_file).map_err(fail("write", &uid_file))?
            }
            Err(error) => return Err(fail("read", &uid_file)(error)),
        };

        let plan_file = dir.join("plan");
        let plan = match files::read_checked(&plan_file) {
            Ok(None) => None,
            Ok(Some(text)) => match serde_json::from_str::<FormatOnly>(&text) {
                Ok(FormatOnly { format }) if format > FORMAT => {
                    return Err(OpenError::NewerFormat { path: plan_file, found: format, known: FORMAT });
                }
                _ => match serde_json::from_str::<PlanFile>(&text) {
                    Ok(file) => Some(file.plan),
                    Err(error) => {
                        quarantined.push(set_aside(&plan_file, true, error.to_string())?);
                        None
                    }
                },
            },
            Err(files::ReadError::Io(error)) => return Err(fail("read", &plan_file)(error)),
            Err(files::ReadError::Damaged(cause)) => {
                quarantined.push(set_aside(&plan_file, true, cause.to_owned())?);
                None
            }
        };

        let (journal, damage) = journal::Journal::open(&dir.join("journal"), boot_id)?;
        quarantined.extend(damage);
        Ok((
            Ledger { dir: dir.to_owned(), node_uid, plan, journal, journal_lost: lost && begun, _lock: lock },
            quarantined,
        ))
    }

    /// As `open`, for a ledger that an agent has begun: where there is none, none is made.
    ///
    /// # Errors
    /// Why it cannot be used; then nothing was changed.
    pub fn open_present(dir: &Path, boot_id: &str) -> Result<(Ledger, Vec<Quarantine>), OpenError> {
        // Any of them: a ledger that lost a file is one still.
        if !["node-uid", "plan", "journal"].iter().any(|name| dir.join(name).exists()) {
            return Err(OpenError::NoState { path: dir.to_owned() });
        }
        Ledger::open(dir, boot_id)
    }

    /// Identity of this ledger, and so of the node's agent.
    pub fn node_uid(&self) -> &str {
        &self.node_uid
    }

    /// Whether what was owned is not known any more: the journal of a ledger that was begun is missing or empty.
    pub fn journal_lost(&self) -> bool {
        self.journal_lost
    }

    /// The accepted plan.
    pub fn plan(&self) -> Option<&Plan> {
        self.plan.as_ref()
    }

    /// Makes a plan durable; it is the accepted one from then on.
    ///
    /// # Errors
    /// It could not be stored: the one before stays.
    pub fn store_plan(&mut self, plan: Plan) -> io::Result<()> {
        let file = PlanFile { format: FORMAT, plan };
        let text = serde_json::to_string(&file).map_err(io::Error::other)?;
        files::write_checked(&self.dir.join("plan"), &text)?;
        self.plan = Some(file.plan);
        Ok(())
    }

    /// What is owned.
    pub fn owned(&self) -> &BTreeMap<SettingKey, Owned> {
        self.journal.owned()
    }

    /// Makes writes that are about to happen durable, all at once.
    ///
    /// # Errors
    /// They could not be: then none of them may be done.
    pub fn begin(&mut self, pending: &[Pending]) -> io::Result<()> {
        self.journal.begin(pending)
    }

    /// Forgets settings: the kernel holds their baseline again, or they are gone.
    ///
    /// # Errors
    /// It could not be stored: they stay owned, which is harmless.
    pub fn forget(&mut self, keys: &[SettingKey]) -> io::Result<()> {
        self.journal.forget(keys)
    }
}

#[derive(Deserialize)]
struct FormatOnly {
    format: u32,
}

fn new_uid(file: &Path) -> io::Result<String> {
    let uid = uuid::Uuid::new_v4().to_string();
    files::replace(file, uid.as_bytes())?;
    Ok(uid)
}

/// Keeps a damaged file beside, under a name that nothing has yet. A journal stays in its place too, until a new one
/// replaces it: a crash in between loses nothing of what can still be read of it.
fn set_aside(file: &Path, plan: bool, cause: String) -> Result<Quarantine, OpenError> {
    let free = (1..).map(|n| PathBuf::from(format!("{}.corrupt-{n}", file.display()))).find(|path| !path.exists());
    let kept_as = free.unwrap_or_else(|| file.with_extension("corrupt"));
    let kept = if plan { std::fs::rename(file, &kept_as) } else { std::fs::hard_link(file, &kept_as) };
    kept.map_err(|source| OpenError::Io { step: "set aside", path: file.to_owned(), source })?;
    Ok(Quarantine { plan, kept_as, cause })
}

#[cfg(test)]
mod tests;
