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
    process::{Flock, FlockType, Pid, fcntl_getlk},
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
        "another weir-agent ({}) enforces on the cgroup hierarchy {} already, perhaps with another name or state \
         directory: one agent a machine; stop that one first, or ask it through the controller: `weirctl release NODE`",
        holder.map_or("whose pid is not seen from here".to_owned(), |pid| format!("pid {pid}")),
        root.display()
    )]
    Taken {
        /// Its root.
        root: PathBuf,
        /// Its pid; `None` where it is in another pid namespace.
        holder: Option<i32>,
    },
    /// The lock's file cannot be used.
    #[error(
        "lock {}: {source}{}",
        file.display(),
        if source.kind() == io::ErrorKind::ReadOnlyFilesystem { ": a container needs the host's /sys/fs/cgroup mounted read-write" } else { "" }
    )]
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
            Err(Errno::ACCESS | Errno::AGAIN) => {
                let held = fcntl_getlk(&file, &Flock::from(FlockType::WriteLock)).ok().flatten();
                let holder = held.and_then(|held| held.pid).map(Pid::as_raw_pid);
                Err(SoleError::Taken { root: root.to_owned(), holder })
            }
            Err(errno) => Err(fail(errno.into())),
        }
    }
}
