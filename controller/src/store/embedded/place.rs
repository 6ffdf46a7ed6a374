//! Where the store's file was opened, and whether it is still there: what is written to a file that was removed or
//! replaced is lost with this process.

use std::{
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use crate::store::StoreError;

/// The file at a path.
#[derive(Clone, Debug)]
pub(super) struct Place {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl Place {
    /// The file that is at `path` now.
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        let found = std::fs::metadata(path)?;
        Ok(Place { path: path.to_owned(), device: found.dev(), inode: found.ino() })
    }

    /// Whether it is the file that is at its path.
    ///
    /// # Errors
    /// It is not, or nobody can tell.
    pub(super) fn verify(&self) -> Result<(), StoreError> {
        let path = self.path.display();
        match std::fs::metadata(&self.path) {
            Ok(found) if (found.dev(), found.ino()) == (self.device, self.inode) => Ok(()),
            Ok(_) => Err(StoreError::Replaced(format!(
                "another file is at {path}: stop the controller before a store is exchanged, and start it again now"
            ))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(StoreError::Replaced(format!(
                "{path} was removed, and with it all that it held: put a copy there (weir-controller store restore), \
                 and start the controller again"
            ))),
            Err(error) => Err(StoreError::Backend(format!("{path} cannot be looked at: {error}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_gone_or_another_is_found_out() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        std::fs::write(&path, "1").unwrap();
        let place = Place::of(&path).unwrap();
        place.verify().unwrap();
        std::fs::write(&path, "2").unwrap();
        place.verify().unwrap();
        std::fs::write(directory.path().join("other"), "1").unwrap();
        std::fs::rename(directory.path().join("other"), &path).unwrap();
        assert!(matches!(place.verify(), Err(StoreError::Replaced(_))));
        std::fs::remove_file(&path).unwrap();
        let error = place.verify().unwrap_err();
        assert!(error.to_string().contains("was removed") && !error.is_retryable(), "{error}");
    }
}
