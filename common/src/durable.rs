//! What makes files durable beside their contents. Touches nothing but the directories that it syncs.

use std::{fs::File, io, path::Path};

/// Makes the names in a file's directory durable: a file that was made, moved or linked is found there after a power cut.
///
/// # Errors
/// The directory cannot be opened or synced.
pub fn sync_directory_of(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(directory) if !directory.as_os_str().is_empty() => File::open(directory)?.sync_all(),
        _ => File::open(".")?.sync_all(),
    }
}
