//! Files that are whole or not there: written beside, synced, renamed, and the directory synced; checked when read.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    path::Path,
};

use weir_common::durable::sync_directory_of;

/// A checked file cannot be used.
#[derive(Debug)]
pub(super) enum ReadError {
    /// It cannot be read.
    Io(io::Error),
    /// It is not what was written.
    Damaged(&'static str),
}

/// Replaces a file's contents; after a crash either the old or the new are there.
pub(crate) fn replace(path: &Path, contents: &[u8]) -> io::Result<()> {
    let beside = path.with_extension("new");
    let mut file = File::create(&beside)?;
    file.write_all(contents)?;
    file.sync_all()?;
    drop(file);
    fs::rename(&beside, path)?;
    sync_directory_of(path)
}

/// A line with its checksum: eight hexadecimal digits of its CRC-32, a blank, the text.
pub(super) fn checked_line(text: &str) -> String {
    format!("{:08x} {text}\n", crc32fast::hash(text.as_bytes()))
}

/// The text of a checked line without its end; `None` where the sum is wrong.
pub(super) fn verify_line(line: &str) -> Option<&str> {
    let (sum, text) = line.split_at_checked(8)?;
    let text = text.strip_prefix(' ')?;
    (u32::from_str_radix(sum, 16).ok()? == crc32fast::hash(text.as_bytes())).then_some(text)
}

/// Replaces a file by one checked line.
pub(super) fn write_checked(path: &Path, text: &str) -> io::Result<()> {
    replace(path, checked_line(text).as_bytes())
}

/// The text of a file of one checked line; `None` where there is no file.
pub(super) fn read_checked(path: &Path) -> Result<Option<String>, ReadError> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(ReadError::Io(error)),
    };
    let text = String::from_utf8(bytes).map_err(|_| ReadError::Damaged("it is not text"))?;
    let line = text.strip_suffix('\n').ok_or(ReadError::Damaged("its end is missing"))?;
    match verify_line(line) {
        Some(text) => Ok(Some(text.to_owned())),
        None => Err(ReadError::Damaged("its checksum is wrong")),
    }
}
