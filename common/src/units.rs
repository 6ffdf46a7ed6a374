//! One type per quantity, so that no bare number crosses a module.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Lowest byte rate that is written by default, bytes per second: below it a direct request waits for minutes in
/// uninterruptible sleep.
pub const DEFAULT_FLOOR_BYTES_PER_SECOND: u64 = 64 * 1024;
/// Lowest operation rate that is written by default, operations per second.
pub const DEFAULT_FLOOR_OPERATIONS_PER_SECOND: u64 = 10;
/// Highest operation rate that is written: the v1 kernel stores 32 bits without a range check, and a value that
/// truncates to zero divides by zero.
pub const MAX_OPERATIONS_PER_SECOND: u64 = u32::MAX as u64 - 1;
/// Highest byte rate that an intent can hold, bytes per second (a signed 64-bit field).
pub const MAX_BYTES_PER_SECOND: u64 = i64::MAX as u64;

/// One of the four throttle limits; its order is the order of all listings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LimitKey {
    /// Read bytes per second.
    Rbps,
    /// Written bytes per second.
    Wbps,
    /// Read operations per second.
    Riops,
    /// Write operations per second.
    Wiops,
}

impl LimitKey {
    /// All keys, in order.
    pub const ALL: [LimitKey; 4] = [LimitKey::Rbps, LimitKey::Wbps, LimitKey::Riops, LimitKey::Wiops];

    /// Its place in [`LimitKey::ALL`].
    pub fn index(self) -> usize {
        match self {
            LimitKey::Rbps => 0,
            LimitKey::Wbps => 1,
            LimitKey::Riops => 2,
            LimitKey::Wiops => 3,
        }
    }

    /// The key's name in io.max.
    pub fn name(self) -> &'static str {
        match self {
            LimitKey::Rbps => "rbps",
            LimitKey::Wbps => "wbps",
            LimitKey::Riops => "riops",
            LimitKey::Wiops => "wiops",
        }
    }

    /// Whether its unit is bytes per second (else operations per second).
    pub fn is_bytes(self) -> bool {
        matches!(self, LimitKey::Rbps | LimitKey::Wbps)
    }

    /// Whether it limits reads (else writes).
    pub fn is_read(self) -> bool {
        matches!(self, LimitKey::Rbps | LimitKey::Riops)
    }
}

impl fmt::Display for LimitKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Value of a throttle limit, in the unit of its key (bytes or operations per second). Ordered by strictness: the
/// lower value is the stricter, `Unlimited` the loosest. A finite value is never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LimitValue {
    /// A limit; 1 or more.
    Finite(std::num::NonZeroU64),
    /// None (`max`).
    Unlimited,
}

impl LimitValue {
    /// The value as a limit; `None` for 0, which no kernel file may be given.
    pub fn finite(value: u64) -> Option<Self> {
        std::num::NonZeroU64::new(value).map(LimitValue::Finite)
    }

    /// The number behind a finite limit.
    pub fn get(self) -> Option<u64> {
        match self {
            LimitValue::Finite(value) => Some(value.get()),
            LimitValue::Unlimited => None,
        }
    }
}

impl fmt::Display for LimitValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LimitValue::Finite(value) => value.fmt(f),
            LimitValue::Unlimited => f.write_str("max"),
        }
    }
}

/// The lowest limits that a node writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Floor {
    /// Bytes per second.
    pub bytes_per_second: u64,
    /// Operations per second.
    pub operations_per_second: u64,
}

impl Floor {
    /// The floor of a key, in its unit.
    pub fn of(self, key: LimitKey) -> u64 {
        if key.is_bytes() { self.bytes_per_second } else { self.operations_per_second }
    }
}

impl Default for Floor {
    fn default() -> Self {
        Floor {
            bytes_per_second: DEFAULT_FLOOR_BYTES_PER_SECOND,
            operations_per_second: DEFAULT_FLOOR_OPERATIONS_PER_SECOND,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strictness_is_the_order() {
        let low = LimitValue::finite(1).unwrap();
        let high = LimitValue::finite(2).unwrap();
        assert_eq!(LimitValue::finite(0), None);
        assert_eq!(high.min(low), low);
        assert_eq!(LimitValue::Unlimited.min(high), high);
        assert_eq!(LimitValue::Unlimited.to_string(), "max");
    }
}
