//! One agent a kernel: two that enforce on the same hierarchy would take each other's limits for what was there before, and
//! leave them behind. A state directory's lock does not tell: they may have one each.
//!
//! The lock is a record lock, which needs a file that is open for writing: only who may write limits can take it. It is on a
//! file that nothing else of the agent opens, since closing any descriptor of a file ends a process's record locks on it.

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{FlockOperation, fcntl_lock},
    io::Errno,
};

use super::{CgroupVersion, hierarchy::Hierarchy};

/// The lock; held while it lives.
#[derive(Debug)]
pub struct SoleAgent {
    _file: File,
}

/// The hierarchy cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum SoleError {
    /// Another agent has it.
    #[error(
        "another weir-agent enforces on the cgroup hierarchy {} already, perhaps with another name or state directory: \
         one agent a machine; stop that one first",
        root.display()
    )]
    Taken {
        /// Its root.
        root: PathBuf,
    },
    /// The lock's file cannot be used.
    #[error("lock {}: {source}", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

impl SoleAgent {
    /// Takes the lock of a hierarchy.
    ///
    /// # Errors
    /// Another process has it, or it cannot be taken.
    pub fn take(hierarchy: &Hierarchy) -> Result<SoleAgent, SoleError> {
        let name = match hierarchy.version {
            CgroupVersion::V1 => "tasks",
            CgroupVersion::V2 => "cgroup.threads",
        };
        Self::lock(&hierarchy.root, &hierarchy.root.join(name))
    }

    fn lock(root: &Path, path: &Path) -> Result<SoleAgent, SoleError> {
        let fail = |source| SoleError::Io { file: path.to_owned(), source };
        let file = File::options().read(true).write(true).open(path).map_err(fail)?;
        match fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(SoleAgent { _file: file }),
            Err(Errno::ACCESS | Errno::AGAIN) => Err(SoleError::Taken { root: root.to_owned() }),
            Err(errno) => Err(fail(errno.into())),
        }
    }
}
