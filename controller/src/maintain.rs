//! What `weir-controller store ...` does to a store while no controller has it: backup, restore, raise the epoch.

use std::{
    fs::{File, OpenOptions},
    io::{self, BufReader, BufWriter, Write},
    path::{Path, PathBuf},
    time::SystemTime,
};

use weir_common::durable::sync_directory_of;

use crate::store::{
    Store, StoreError,
    backup::{self, Backup, BackupError, Summary},
};

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq, clap::Subcommand)]
pub enum StoreCommand {
    /// Copy everything to a file of JSON lines; `-` is standard output.
    Backup {
        /// The file; it must not exist yet.
        file: PathBuf,
    },
    /// Put a backup into a new store, with a higher epoch, so that agents follow it.
    Restore {
        /// The file.
        file: PathBuf,
    },
    /// Make agents follow this store, whatever store or state they followed before.
    RaiseEpoch,
}

/// It was not done.
#[derive(Debug, thiserror::Error)]
pub enum MaintainError {
    /// The file cannot be opened or made durable.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The backup's file is there already.
    #[error("{} exists already, and a backup never goes over another file: give another name", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The file is no whole backup.
    #[error("{}: {source}", path.display())]
    NoBackup {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: BackupError,
    },
    /// No backup, or no restore.
    #[error(transparent)]
    Backup(#[from] BackupError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What to do, with all that can be looked at before the store is opened.
#[derive(Debug)]
pub enum Work {
    /// Copy everything to a file.
    Backup(PathBuf),
    /// Put this into a new store.
    Restore(Backup),
    /// Raise the epoch.
    RaiseEpoch,
}

/// Reads what is to be restored, so that a backup that is no good leaves no empty store behind.
///
/// # Errors
/// It is no whole backup.
pub fn prepare(command: StoreCommand) -> Result<Work, MaintainError> {
    Ok(match command {
        StoreCommand::Backup { file } => Work::Backup(file),
        StoreCommand::Restore { file } => {
            let from = File::open(&file).map_err(|source| error(&file, source))?;
            let read = backup::read(BufReader::new(from));
            Work::Restore(read.map_err(|source| MaintainError::NoBackup { path: file, source })?)
        }
        StoreCommand::RaiseEpoch => Work::RaiseEpoch,
    })
}

/// Does it; one sentence about what was done.
///
/// # Errors
/// See [`MaintainError`].
pub async fn run(store: &impl Store, work: Work) -> Result<String, MaintainError> {
    match work {
        Work::Backup(file) => {
            let Summary { items, epoch } = back_up(store, &file).await?;
            Ok(format!("{items} items of epoch {epoch} are in {}", file.display()))
        }
        Work::Restore(backup) => {
            let Summary { items, epoch } = backup::restore(store, backup, SystemTime::now()).await?;
            Ok(format!("{items} items are restored; the epoch is {epoch}, so that agents follow this store"))
        }
        Work::RaiseEpoch => {
            let epoch = backup::next_epoch(store.epoch(), SystemTime::now());
            store.raise_epoch(epoch).await?;
            Ok(format!("the epoch was {} and is {epoch}: agents follow this store from its next start", store.epoch()))
        }
    }
}

fn error(path: &Path, source: io::Error) -> MaintainError {
    MaintainError::File { path: path.to_owned(), source }
}

async fn back_up(store: &impl Store, file: &Path) -> Result<Summary, MaintainError> {
    if file == Path::new("-") {
        return Ok(backup::write(store, &mut io::stdout().lock()).await?);
    }
    // Never over another backup; and readable for its owner alone, as the store is.
    let options = {
        use std::os::unix::fs::OpenOptionsExt as _;
        OpenOptions::new().write(true).create_new(true).mode(0o600).clone()
    };
    let opened = options.open(file);
    if opened.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::AlreadyExists) {
        return Err(MaintainError::Exists { path: file.to_owned() });
    }
    let mut to = BufWriter::new(opened.map_err(|source| error(file, source))?);
    let written = async {
        let summary = backup::write(store, &mut to).await?;
        to.flush().and_then(|()| to.get_ref().sync_all()).map_err(|source| error(file, source))?;
        sync_directory_of(file).map_err(|source| error(file, source))?;
        Ok(summary)
    };
    let written = written.await;
    if written.is_err() {
        // A part of a backup is none, and would stand in the way of the next attempt. Where even that fails, the cause is told.
        let _left = std::fs::remove_file(file);
    }
    written
}
