//! `io.stat` (cgroup v2): cumulative counters, one line a device, `MAJ:MIN rbytes=N wbytes=N rios=N wios=N dbytes=N dios=N`
//! and whatever other controllers add. Counts when the throttle has let the I/O go. A line may have no keys at all, and
//! some kernels name hidden devices `(unknown)`.

use std::collections::BTreeMap;

use weir_common::device::DevNum;

use super::IoCounters;

/// Name of the file.
pub const FILE: &str = "io.stat";

/// Counters by device. A row that cannot be understood is passed over, alone; a field that is not there is 0, as the kernel
/// leaves rows out until there is I/O.
pub fn parse(text: &str) -> BTreeMap<DevNum, IoCounters> {
    let mut all = BTreeMap::new();
    'rows: for line in text.lines() {
        let mut fields = line.split_ascii_whitespace();
        let Some(device) = fields.next().and_then(|field| field.parse().ok()) else { continue };
        let mut counters = IoCounters::default();
        for (key, value) in fields.filter_map(|field| field.split_once('=')) {
            let counter = match key {
                "rbytes" => &mut counters.read_bytes,
                "wbytes" => &mut counters.write_bytes,
                "rios" => &mut counters.read_operations,
                "wios" => &mut counters.write_operations,
                _ => continue,
            };
            match value.parse() {
                Ok(value) => *counter = value,
                // A broken figure is no figure: better no row than a wrong one.
                Err(_) => continue 'rows,
            }
        }
        all.insert(device, counters);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn good_absent_and_garbage() {
        let text = "259:0 rbytes=4096 wbytes=1 rios=2 wios=3 dbytes=0 dios=0 cost.vrate=100.00 cost.usage=9\n\
                    8:0 \n8:16\n(unknown) rbytes=0 wbytes=0 rios=6732\n8:32 rbytes=x rios=1\n8:48 rios=5 new rbytes=6\n";
        let all = parse(text);
        assert_eq!(all.keys().map(ToString::to_string).collect::<Vec<_>>(), ["8:0", "8:16", "8:48", "259:0"]);
        let nvme = all[&DevNum { major: 259, minor: 0 }];
        assert_eq!((nvme.read_bytes, nvme.write_bytes, nvme.read_operations, nvme.write_operations), (4096, 1, 2, 3));
        assert_eq!(all[&DevNum { major: 8, minor: 48 }].read_bytes, 6);
        assert!(parse("").is_empty());
    }

    proptest! {
        #[test]
        fn never_panics(text in "\\PC{0,200}") { parse(&text); }
    }
}
