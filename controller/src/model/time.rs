//! Wall-clock instants, for people only: nothing is ordered by them.

use serde::{Deserialize, Serialize};

/// An instant of the wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WallTime {
    /// Seconds since 1970-01-01 UTC.
    pub seconds: i64,
    /// Nanoseconds of the second.
    pub nanos: u32,
}

impl From<std::time::SystemTime> for WallTime {
    /// An instant before 1970 becomes 1970.
    fn from(time: std::time::SystemTime) -> Self {
        let since = time.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        WallTime { seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX), nanos: since.subsec_nanos() }
    }
}
