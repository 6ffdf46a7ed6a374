//! `blkio.throttle.{read,write}_{bps,iops}_device` (cgroup v1): one limit a file, one line a device, `MAJ:MIN VALUE`.
//! Writing 0 removes a limit. The kernel reads digits and ignores what follows (`10M` is 10), wraps at 2^64, and stores
//! operations in 32 bits without a check, so only plain decimal numbers in range are ever written.

use std::collections::BTreeMap;

use weir_common::{
    device::DevNum,
    units::{LimitKey, LimitValue, MAX_OPERATIONS_PER_SECOND},
};

/// Name of the file that holds a limit.
pub fn file(key: LimitKey) -> &'static str {
    match key {
        LimitKey::Rbps => "blkio.throttle.read_bps_device",
        LimitKey::Wbps => "blkio.throttle.write_bps_device",
        LimitKey::Riops => "blkio.throttle.read_iops_device",
        LimitKey::Wiops => "blkio.throttle.write_iops_device",
    }
}

/// Limits by device. Rows that cannot be understood are passed over, alone.
pub fn parse(text: &str) -> BTreeMap<DevNum, LimitValue> {
    text.lines()
        .filter_map(|line| {
            let mut fields = line.split_ascii_whitespace();
            let device = fields.next()?.parse().ok()?;
            let value = LimitValue::finite(fields.next()?.parse().ok()?)?;
            fields.next().is_none().then_some((device, value))
        })
        .collect()
}

/// The text of one write; `None` where the kernel would take the value for another one.
pub fn format(device: DevNum, key: LimitKey, value: LimitValue) -> Option<String> {
    // 2^64-1 is the kernel's own mark for none.
    let highest = if key.is_bytes() { u64::MAX - 1 } else { MAX_OPERATIONS_PER_SECOND };
    let number = value.get().unwrap_or(0);
    (number <= highest).then(|| format!("{device} {number}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn good_absent_and_garbage() {
        let good = parse("7:3 1000\n259:0 18446744073709551614\n");
        assert_eq!(good[&DevNum { major: 7, minor: 3 }], LimitValue::finite(1000).unwrap());
        assert_eq!(good.len(), 2);
        assert!(parse("").is_empty());
        assert_eq!(parse("7:3\n7:4 x\n7:5 0\n7:6 5 6\nTotal 0\n7:7 9\n").len(), 1);
    }

    #[test]
    fn none_is_0_and_what_would_wrap_is_not_written() {
        let device = DevNum { major: 7, minor: 0 };
        assert_eq!(format(device, LimitKey::Rbps, LimitValue::Unlimited).unwrap(), "7:0 0");
        let wraps = LimitValue::finite(1 << 32).unwrap();
        assert_eq!(format(device, LimitKey::Riops, wraps), None);
        assert_eq!(format(device, LimitKey::Rbps, wraps).unwrap(), "7:0 4294967296");
        assert_eq!(format(device, LimitKey::Wbps, LimitValue::finite(u64::MAX).unwrap()), None);
    }

    proptest! {
        #[test]
        fn never_panics(text in "\\PC{0,200}") { parse(&text); }
    }
}
