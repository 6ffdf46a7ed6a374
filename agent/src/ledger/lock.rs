//! One agent a node: an exclusive lock on a file that names its holder. The kernel drops it with the process, however that
//! ends.

use std::{
    fs::File,
    io::{self, Read as _, Seek as _, Write as _},
    path::{Path, PathBuf},
};

use rustix::{fs::FlockOperation, io::Errno};

/// The lock; held while it lives.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

/// The lock cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Somebody has it.
    #[error("{path} is held by {holder}; stop it first, or ask it through the controller: `weirctl release NODE`")]
    Held {
        /// The file.
        path: PathBuf,
        /// Who has it, as they wrote it.
        holder: String,
    },
    /// The file cannot be used.
    #[error("lock {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

impl Lock {
    /// Takes the lock of a state directory.
    ///
    /// # Errors
    /// Who has it, or why it cannot be used.
    pub fn take(dir: &Path) -> Result<Lock, LockError> {
        let path = dir.join("lock");
        let fail = |source| LockError::Io { path: path.clone(), source };
        let opened = File::options().read(true).write(true).create(true).truncate(false).open(&path);
        let mut file = match opened {
            // What is owned can be put back all the same; a lock needs no writing.
            Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => File::open(&path).map_err(fail)?,
            opened => opened.map_err(fail)?,
        };
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let mut holder = String::new();
                let read = file.read_to_string(&mut holder);
                let named = read.is_ok() && !holder.trim().is_empty();
                let holder = if named { holder.trim().to_owned() } else { "another process".to_owned() };
                return Err(LockError::Held { path, holder });
            }
            Err(errno) => return Err(fail(errno.into())),
        }
        let program = std::env::args().next().unwrap_or_default();
        let named = file.set_len(0).and_then(|()| file.rewind());
        let named = named.and_then(|()| writeln!(file, "pid {} ({program})", std::process::id()));
        if let Err(error) = named {
            // It is held all the same, as on a file system that is full.
            tracing::warn!(%error, path = %path.display(), "the lock does not say who holds it");
        }
        Ok(Lock { _file: file })
    }
}
