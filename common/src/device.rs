//! Identities of block devices.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// A device number, `MAJ:MIN` (12 and 20 bits).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct DevNum {
    /// Major number, below 2^12.
    pub major: u32,
    /// Minor number, below 2^20.
    pub minor: u32,
}

/// The text is no device number.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no device number of the form MAJ:MIN")]
pub struct DevNumError(pub String);

impl FromStr for DevNum {
    type Err = DevNumError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || DevNumError(text.to_owned());
        let (major, minor) = text.split_once(':').ok_or_else(error)?;
        let digits = |part: &str| -> Option<u32> {
            if part.is_empty() || !part.bytes().all(|b| b.is_ascii_digit()) {
                return None;
            }
            part.parse().ok()
        };
        let major = digits(major).filter(|&n| n < 1 << 12).ok_or_else(error)?;
        let minor = digits(minor).filter(|&n| n < 1 << 20).ok_or_else(error)?;
        Ok(DevNum { major, minor })
    }
}

impl fmt::Display for DevNum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

impl From<DevNum> for String {
    fn from(num: DevNum) -> String {
        num.to_string()
    }
}

impl TryFrom<String> for DevNum {
    type Error = DevNumError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

/// Identity of a block device: a disk that comes back under the same number has another sequence and inherits nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DeviceId {
    /// Number.
    pub num: DevNum,
    /// /sys/block/*/diskseq; `None` where the kernel has none (before 5.15).
    pub diskseq: Option<u64>,
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.diskseq {
            Some(seq) => write!(f, "{}#{seq}", self.num),
            None => self.num.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_parsed_exactly() {
        assert_eq!("259:1048575".parse(), Ok(DevNum { major: 259, minor: 1_048_575 }));
        for bad in
            ["", "8", "8:", ":0", "8:0 ", " 8:0", "8:-1", "+8:0", "4096:0", "8:1048576", "(unknown)", "loop0", "8:0:1"]
        {
            assert!(bad.parse::<DevNum>().is_err(), "{bad}");
        }
    }
}
