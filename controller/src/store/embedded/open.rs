//! Opening the file: who may, and whether it is one that this version can use. A file that cannot be used is not
//! changed: it is looked at through an overlay that keeps its writes in memory before it is opened for good.

use std::{
    fs::{OpenOptions, TryLockError},
    io,
    os::unix::fs::OpenOptionsExt as _,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
};

use redb::{Builder, Database, DatabaseError, ReadableDatabase, ReadableTable, StorageError};

use super::{COMPACTED, EPOCH, FORMAT, FORMAT_VERSION, KV, LOG, META, REVISION, UID, backend, meta, overlay::Overlay};
use weir_common::durable::sync_directory_of;

use crate::store::StoreError;

/// Memory for pages of the file, bytes.
const CACHE: usize = 64 << 20;

/// The store's file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it.
    #[error(
        "the store {path} is in use by another process: stop the other controller, or give this one another file \
         with --store"
    )]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The file could not be made, read or locked.
    #[error("the store {path} cannot be opened ({step}): {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        step: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// The file is damaged, or something else than a store.
    #[error(
        "{path} is damaged or no store of this controller ({cause}); it was left as it is: move it away and restore a \
         copy, or start with another file with --store"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What was found.
        cause: String,
    },
    /// A newer controller wrote it.
    #[error(
        "the store {path} has format {found}, this controller knows formats up to {known}; it was left as it is: start \
         a controller at least as new as the one that wrote it"
    )]
    NewerFormat {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u64,
        /// The newest that is known here.
        known: u64,
    },
    /// It was opened but does not work.
    #[error("the store {path} does not start: {cause}")]
    Start {
        /// The file.
        path: PathBuf,
        /// Why not.
        cause: String,
    },
}

pub(super) fn builder() -> Builder {
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE);
    builder
}

/// Opens the file at `path`, or makes a new one.
pub(super) fn open_file(path: &Path) -> Result<Database, OpenError> {
    let exists = path.try_exists().map_err(|source| io_error(path, "looking for it", source))?;
    if exists {
        try_out(path)?;
    } else {
        create(path)?;
    }
    builder().open(path).map_err(|error| database_error(path, "opening it", error))
}

fn io_error(path: &Path, step: &'static str, source: io::Error) -> OpenError {
    OpenError::Io { path: path.to_owned(), step, source }
}

fn database_error(path: &Path, step: &'static str, error: DatabaseError) -> OpenError {
    match error {
        DatabaseError::DatabaseAlreadyOpen | DatabaseError::LockProtocolMismatch => {
            OpenError::InUse { path: path.to_owned() }
        }
        DatabaseError::Storage(StorageError::Io(source)) if source.kind() != io::ErrorKind::InvalidData => {
            io_error(path, step, source)
        }
        other => OpenError::Damaged { path: path.to_owned(), cause: other.to_string() },
    }
}

/// Whether the file is a store that this version can use; does not change it.
fn try_out(path: &Path) -> Result<(), OpenError> {
    let file =
        OpenOptions::new().read(true).write(true).open(path).map_err(|source| io_error(path, "opening it", source))?;
    // Held while looking, so that nobody writes meanwhile.
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(OpenError::InUse { path: path.to_owned() }),
        Err(TryLockError::Error(source)) => return Err(io_error(path, "locking it", source)),
    }
    let damaged = |cause: String| OpenError::Damaged { path: path.to_owned(), cause };
    let overlay = Overlay::new(file).map_err(|source| io_error(path, "reading it", source))?;
    if overlay.is_empty() {
        return Err(damaged("it is empty".to_owned()));
    }
    // The database's own checks may panic on a file that was altered, where a build has debug assertions.
    let looked = catch_unwind(AssertUnwindSafe(|| look(overlay)));
    match looked {
        Ok(Ok(format)) if format <= FORMAT_VERSION => Ok(()),
        Ok(Ok(found)) => Err(OpenError::NewerFormat { path: path.to_owned(), found, known: FORMAT_VERSION }),
        Ok(Err(cause)) => Err(damaged(cause)),
        Err(_) => Err(damaged("its pages contradict each other".to_owned())),
    }
}

/// The format's version, after a check of every page.
fn look(overlay: Overlay) -> Result<u64, String> {
    let mut checking = builder();
    checking.set_check_integrity_on_open(true);
    let db = checking.create_with_backend(overlay).map_err(|error| error.to_string())?;
    let txn = db.begin_read().map_err(|error| error.to_string())?;
    let format = meta(&txn, FORMAT).map_err(|error| error.to_string())?;
    if format <= FORMAT_VERSION {
        for key in [EPOCH, REVISION, COMPACTED] {
            meta(&txn, key).map_err(|error| error.to_string())?;
        }
        txn.open_table(KV).map_err(|error| error.to_string())?;
        txn.open_table(LOG).map_err(|error| error.to_string())?;
    }
    Ok(format)
}

/// Makes a new store beside `path` and moves it there when it is complete, so that a crash leaves no half of one.
fn create(path: &Path) -> Result<(), OpenError> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let new = path.with_file_name(name);
    match std::fs::remove_file(&new) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(source) => return Err(io_error(&new, "removing what an earlier attempt left", source)),
    }
    // What callers may see by their roles alone is not to be read from the file.
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&new)
        .map_err(|source| io_error(&new, "making it", source))?;
    let db = builder().create(&new).map_err(|error| database_error(&new, "making it", error))?;
    initialise(&db).map_err(|error| OpenError::Start { path: new.clone(), cause: error.to_string() })?;
    drop(db);
    // Never over a store that somebody else made meanwhile.
    std::fs::hard_link(&new, path).map_err(|source| io_error(path, "moving it into place", source))?;
    std::fs::remove_file(&new).map_err(|source| io_error(&new, "moving it into place", source))?;
    sync_directory_of(path).map_err(|source| io_error(path, "syncing its directory", source))
}

/// Gives the store its identity where it has none: it is new, or was made before stores had one.
pub(super) fn give_uid(db: &Database) -> Result<(), StoreError> {
    let txn = db.begin_write().map_err(backend)?;
    {
        let mut table = txn.open_table(META).map_err(backend)?;
        let present = table.get(UID).map_err(backend)?.is_some();
        if present {
            return Ok(());
        }
        table.insert(UID, fastrand::u64(1..)).map_err(backend)?;
    }
    txn.commit().map_err(backend)
}

/// Raises the epoch in the file.
pub(super) fn raise_epoch(db: &Database, to: u64) -> Result<(), StoreError> {
    let txn = db.begin_write().map_err(backend)?;
    {
        let mut table = txn.open_table(META).map_err(backend)?;
        let present = table.get(EPOCH).map_err(backend)?.map_or(0, |epoch| epoch.value());
        if present >= to {
            return Ok(());
        }
        table.insert(EPOCH, to).map_err(backend)?;
    }
    txn.commit().map_err(backend)
}

/// Writes the meta table where there is none.
pub(super) fn initialise(db: &Database) -> Result<(), StoreError> {
    let txn = db.begin_write().map_err(backend)?;
    {
        let mut table = txn.open_table(META).map_err(backend)?;
        let present = table.get(FORMAT).map_err(backend)?.is_some();
        if present {
            return Ok(());
        }
        for (key, value) in [(FORMAT, FORMAT_VERSION), (EPOCH, 1), (REVISION, 1), (COMPACTED, 1)] {
            table.insert(key, value).map_err(backend)?;
        }
        txn.open_table(KV).map_err(backend)?;
        txn.open_table(LOG).map_err(backend)?;
    }
    txn.commit().map_err(backend)
}
