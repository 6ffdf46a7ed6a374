//! `io.pressure` (cgroup v2): time in which tasks of the cgroup were stalled on I/O; the throttle's delay counts too.
//! `some avg10=… avg60=… avg300=… total=N` with N in microseconds, and a second line `full`.

/// Name of the file.
pub const FILE: &str = "io.pressure";

/// The `total` of `some`, microseconds.
pub fn parse_some_total_us(text: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with("some "))?;
    line.split_ascii_whitespace().find_map(|field| field.strip_prefix("total="))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::parse_some_total_us;

    #[test]
    fn good_absent_and_garbage() {
        let good =
            "some avg10=1.00 avg60=0.50 avg300=0.10 total=12345\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=9\n";
        assert_eq!(parse_some_total_us(good), Some(12345));
        assert_eq!(parse_some_total_us(""), None);
        assert_eq!(parse_some_total_us("some total=x\n"), None);
    }
}
