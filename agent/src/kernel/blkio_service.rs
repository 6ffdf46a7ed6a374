//! `blkio.throttle.io_service_bytes` and `blkio.throttle.io_serviced` (cgroup v1): cumulative counters, several lines a
//! device, `MAJ:MIN Read|Write|Sync|Async|Discard|Total N`, and a last line `Total N` without a device. They count at
//! submission, before the throttle delays, and exist for a device only once some limit was written for it.

use std::collections::BTreeMap;

use weir_common::device::DevNum;

/// File of the bytes.
pub const BYTES: &str = "blkio.throttle.io_service_bytes";
/// File of the operations; one that is split counts once more for each part.
pub const OPERATIONS: &str = "blkio.throttle.io_serviced";

/// (reads, writes) by device. Sync and Async count the same I/O again and are passed over, as is any row that cannot be
/// understood. A device with only one of the two rows intact is left out.
pub fn parse(text: &str) -> BTreeMap<DevNum, (u64, u64)> {
    let mut halves: BTreeMap<DevNum, (Option<u64>, Option<u64>)> = BTreeMap::new();
    for line in text.lines() {
        let mut fields = line.split_ascii_whitespace();
        let (Some(device), Some(operation), Some(value), None) =
            (fields.next(), fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let (Ok(device), Ok(value)) = (device.parse(), value.parse()) else { continue };
        let half = halves.entry(device).or_default();
        match operation {
            "Read" => half.0 = Some(value),
            "Write" => half.1 = Some(value),
            _ => {}
        }
    }
    halves.into_iter().filter_map(|(device, (read, write))| Some((device, (read?, write?)))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn good_absent_and_garbage() {
        let text = "7:0 Read 100\n7:0 Write 20\n7:0 Sync 120\n7:0 Async 0\n7:0 Discard 0\n7:0 Total 120\nTotal 120\n\
                    7:1 Read 5\n7:1 Write\n7:2 Read -1\n7:2 Write 3\n";
        let all = parse(text);
        assert_eq!(all.len(), 1);
        assert_eq!(all[&DevNum { major: 7, minor: 0 }], (100, 20));
        assert!(parse("Total 0\n").is_empty());
        assert!(parse("").is_empty());
    }

    proptest! {
        #[test]
        fn never_panics(text in "\\PC{0,200}") { parse(&text); }
    }
}
