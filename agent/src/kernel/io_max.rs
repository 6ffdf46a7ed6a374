//! `io.max` (cgroup v2): all four limits of a cgroup, one line a device, `MAJ:MIN rbps=N|max wbps=… riops=… wiops=…`.
//! The file exists in every cgroup but the root whose parent passes the io controller on. Keys that a write does not name
//! keep their value; `max` is none; 0 is refused (ERANGE), 1 too (EINVAL).

use std::{collections::BTreeMap, fmt::Write as _};

use weir_common::{
    device::DevNum,
    units::{LimitKey, LimitValue},
};

use super::LimitSet;

/// Name of the file.
pub const FILE: &str = "io.max";

/// Finite limits by device. Rows and fields that cannot be understood are passed over, alone.
pub fn parse(text: &str) -> BTreeMap<DevNum, LimitSet> {
    let mut all = BTreeMap::new();
    for line in text.lines() {
        let mut fields = line.split_ascii_whitespace();
        let Some(device) = fields.next().and_then(|field| field.parse().ok()) else { continue };
        let mut limits = LimitSet::new();
        for (key, value) in fields.filter_map(|field| field.split_once('=')) {
            let key = LimitKey::ALL.into_iter().find(|known| known.name() == key);
            if let (Some(key), Some(value)) = (key, value.parse().ok().and_then(LimitValue::finite)) {
                limits.insert(key, value);
            }
        }
        if !limits.is_empty() {
            all.insert(device, limits);
        }
    }
    all
}

/// The text of one write for one device, naming the given keys and no others.
pub fn format(device: DevNum, limits: &LimitSet) -> String {
    let mut text = device.to_string();
    for (key, value) in limits {
        // Writing to a String does not fail.
        let _infallible = write!(text, " {key}={value}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn good_absent_and_garbage() {
        let good = parse("8:16 rbps=2097152 wbps=max riops=max wiops=120\n259:0 rbps=max wbps=5 riops=max wiops=max\n");
        let first = &good[&DevNum { major: 8, minor: 16 }];
        assert_eq!(first.len(), 2);
        assert_eq!(first[&LimitKey::Wiops], LimitValue::finite(120).unwrap());
        assert_eq!(good.len(), 2);
        assert!(parse("").is_empty());
        let mixed = parse("(unknown) rbps=5\n8:0\n8:1 rbps=x\n8:2 new=7 rbps=9\n");
        assert_eq!(mixed.keys().map(ToString::to_string).collect::<Vec<_>>(), ["8:2"]);
    }

    #[test]
    fn only_the_given_keys_are_named() {
        let limits = LimitSet::from([
            (LimitKey::Wiops, LimitValue::Unlimited),
            (LimitKey::Rbps, LimitValue::finite(7).unwrap()),
        ]);
        assert_eq!(format(DevNum { major: 259, minor: 0 }, &limits), "259:0 rbps=7 wiops=max");
    }

    proptest! {
        #[test]
        fn never_panics(text in "\\PC{0,200}") { parse(&text); }
    }
}
