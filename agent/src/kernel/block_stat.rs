//! `/sys/dev/block/MAJ:MIN/stat`: the device's own counters on one line; the tenth is the time with I/O in flight.

/// Milliseconds with I/O in flight, modulo 2^32 as the kernel prints it.
pub fn parse_busy_ms(text: &str) -> Option<u32> {
    let value: u64 = text.split_ascii_whitespace().nth(9)?.parse().ok()?;
    u32::try_from(value & u64::from(u32::MAX)).ok()
}

#[cfg(test)]
mod tests {
    use super::parse_busy_ms;

    #[test]
    fn good_absent_and_garbage() {
        assert_eq!(parse_busy_ms("  1 2 3 4 5 6 7 8 9 1234 11 12 13 14 15 16 17\n"), Some(1234));
        assert_eq!(parse_busy_ms("1 2 3 4 5 6 7 8 9 4294967299 11"), Some(3));
        assert_eq!(parse_busy_ms("1 2 3"), None);
        assert_eq!(parse_busy_ms("1 2 3 4 5 6 7 8 9 x"), None);
    }
}
