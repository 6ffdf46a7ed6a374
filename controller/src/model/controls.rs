//! Controls: what an intent wants to be kept, each with its bounds.

use std::{num::NonZeroU64, str::FromStr};

use serde::{Deserialize, Serialize};
use weir_common::units::{Floor, LimitKey, MAX_OPERATIONS_PER_SECOND};

use super::{FieldPath, Violations};

/// A number with a fraction that survives storage bit for bit (JSON numbers need not).
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Ratio(pub f64);

impl From<Ratio> for String {
    fn from(ratio: Ratio) -> String {
        // The shortest text that parses back to the same bits.
        ratio.0.to_string()
    }
}

impl TryFrom<String> for Ratio {
    type Error = std::num::ParseFloatError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        f64::from_str(&text).map(Ratio)
    }
}

/// What is wanted of one throttle limit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RateLimit {
    /// In the unit of its key: bytes or operations per second.
    PerSecond(NonZeroU64),
    /// Of the device's capacity, above 0, at most 100.
    PercentOfCapacity(Ratio),
    /// Explicitly none.
    Unlimited,
}

impl RateLimit {
    /// An absolute limit of `key`, at least the default floor.
    pub fn per_second(at: &FieldPath, key: LimitKey, value: i64, out: &mut Violations) -> Option<Self> {
        let floor = Floor::default().of(key);
        let unit = if key.is_bytes() { "bytes" } else { "operations" };
        let Ok(number) = u64::try_from(value) else {
            out.add(at, format!("{value} is negative"));
            return None;
        };
        let Some(positive) = NonZeroU64::new(number) else {
            out.add(at, "0 is no limit: leave the field out, or say `unlimited: true`");
            return None;
        };
        if number < floor {
            out.add(at, format!("{number} is below the floor of {floor} {unit} per second"));
            return None;
        }
        if !key.is_bytes() && number > MAX_OPERATIONS_PER_SECOND {
            out.add(at, format!("{number} is above the kernel's highest of {MAX_OPERATIONS_PER_SECOND} per second"));
            return None;
        }
        Some(RateLimit::PerSecond(positive))
    }

    /// A share of the capacity.
    pub fn percent(at: &FieldPath, percent: f64, out: &mut Violations) -> Option<Self> {
        above_zero(at, percent, 100.0, out).map(RateLimit::PercentOfCapacity)
    }

    /// Explicitly none; `false` says nothing.
    pub fn unlimited(at: &FieldPath, value: bool, out: &mut Violations) -> Option<Self> {
        if !value {
            out.add(at, "only `true` is valid: leave the limit out where it is not managed");
        }
        value.then_some(RateLimit::Unlimited)
    }
}

/// Above 0 (NaN is not), at most `high`.
fn above_zero(at: &FieldPath, value: f64, high: f64, out: &mut Violations) -> Option<Ratio> {
    if value > 0.0 && value <= high {
        return Some(Ratio(value));
    }
    out.add(at, format!("{value} is not above 0 and at most {high}"));
    None
}

/// Hard upper limits; absent means not managed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// Read bytes per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rbps: Option<RateLimit>,
    /// Written bytes per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wbps: Option<RateLimit>,
    /// Read operations per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub riops: Option<RateLimit>,
    /// Write operations per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wiops: Option<RateLimit>,
}

impl Limits {
    /// The limit of a key.
    pub fn get(&self, key: LimitKey) -> Option<RateLimit> {
        match key {
            LimitKey::Rbps => self.rbps,
            LimitKey::Wbps => self.wbps,
            LimitKey::Riops => self.riops,
            LimitKey::Wiops => self.wiops,
        }
    }

    /// The same with one key changed.
    #[must_use]
    pub fn with(mut self, key: LimitKey, limit: Option<RateLimit>) -> Self {
        match key {
            LimitKey::Rbps => self.rbps = limit,
            LimitKey::Wbps => self.wbps = limit,
            LimitKey::Riops => self.riops = limit,
            LimitKey::Wiops => self.wiops = limit,
        }
        self
    }

    /// Whether no key is managed.
    pub fn is_empty(&self) -> bool {
        LimitKey::ALL.iter().all(|&key| self.get(key).is_none())
    }
}

/// Share of the device, 1 to 10000.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Weight(u32);

impl Weight {
    /// A weight, or a violation.
    pub fn new(at: &FieldPath, weight: i32, out: &mut Violations) -> Option<Self> {
        out.check_range(at, weight, 1, 10_000).then(|| Weight(weight.unsigned_abs()))
    }

    /// 1 to 10000.
    pub fn get(self) -> u32 {
        self.0
    }
}

/// A latency to protect.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LatencyTarget {
    /// Microseconds, 1 to 60000000.
    pub target_us: i64,
    /// Above 0, below 100; `None` means 99.
    pub percentile: Option<Ratio>,
}

impl LatencyTarget {
    /// The target itself, where it is valid.
    pub fn checked(at: &FieldPath, target_us: i64, percentile: f64, out: &mut Violations) -> Option<Self> {
        let target_ok = out.check_range(&at.field("target_us"), target_us, 1, 60_000_000);
        // A `contains` would let NaN through in its negation; both comparisons are false for it.
        let percentile_ok = percentile == 0.0 || (percentile > 0.0 && percentile < 100.0);
        if !percentile_ok {
            out.add(&at.field("percentile"), format!("{percentile} is not above 0 and below 100 (0 means 99)"));
        }
        (target_ok && percentile_ok)
            .then(|| LatencyTarget { target_us, percentile: (percentile != 0.0).then_some(Ratio(percentile)) })
    }
}

/// Limit of CPU idle-state exit latency.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CpuLatency {
    /// Microseconds, 0 to 2000000000.
    pub limit_us: i64,
    /// Milliseconds, 1 to 60000.
    pub idle_timeout_ms: i64,
    /// Milliseconds, 0 to 60000.
    pub min_hold_ms: i64,
    /// The kernel's list format; empty means those that serve the I/O.
    pub cpus: String,
    /// Above 0, at most 1; `None` means 1.
    pub max_active_fraction: Option<Ratio>,
    /// Permits polling.
    pub allow_polling: bool,
}

impl CpuLatency {
    /// The limit itself, where it is valid; a fraction of 0 is to be `None` already.
    pub fn checked(self, at: &FieldPath, out: &mut Violations) -> Option<Self> {
        let before = out.as_slice().len();
        out.check_range(&at.field("limit_us"), self.limit_us, 0, 2_000_000_000);
        out.check_range(&at.field("idle_timeout_ms"), self.idle_timeout_ms, 1, 60_000);
        out.check_range(&at.field("min_hold_ms"), self.min_hold_ms, 0, 60_000);
        if !self.cpus.is_empty() && !is_cpu_list(&self.cpus) {
            out.add(&at.field("cpus"), "is no list of CPUs as the kernel writes it, for instance `0-3,8`");
        }
        if let Some(fraction) = self.max_active_fraction {
            above_zero(&at.field("max_active_fraction"), fraction.0, 1.0, out);
        }
        (out.as_slice().len() == before).then_some(self)
    }
}

fn is_cpu_list(text: &str) -> bool {
    // 8192 CPUs is the most that a kernel is built for.
    let number = |part: &str| part.parse::<u32>().ok().filter(|&cpu| cpu < 8192 && !part.starts_with('+'));
    text.len() <= 4096
        && text.split(',').all(|range| match range.split_once('-') {
            Some((first, last)) => matches!((number(first), number(last)), (Some(a), Some(b)) if a <= b),
            None => number(range).is_some(),
        })
}

/// How readahead is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReadaheadMode {
    /// By the limit, else unmanaged.
    Unspecified,
    /// By the limit's slice.
    Auto,
    /// As given.
    Fixed,
    /// Left alone.
    Unmanaged,
}

/// The device's readahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Readahead {
    /// How it is chosen.
    pub mode: ReadaheadMode,
    /// KiB, 4 to 1048576; 0 unless the mode is fixed.
    pub kib: i64,
    /// Also for files that are open.
    pub tune_running: bool,
}

impl Readahead {
    /// The readahead itself, where it is valid.
    pub fn checked(self, at: &FieldPath, out: &mut Violations) -> Option<Self> {
        let ok = if self.mode == ReadaheadMode::Fixed {
            out.check_range(&at.field("kib"), self.kib, 4, 1_048_576)
        } else {
            if self.kib != 0 {
                out.add(&at.field("kib"), "is given only with READAHEAD_MODE_FIXED");
            }
            self.kib == 0
        };
        ok.then_some(self)
    }
}

/// What the intent tolerates.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Accuracy {
    /// Percent, above 0, at most 100.
    pub max_error_percent: Ratio,
    /// Milliseconds, 500 to 3600000.
    pub window_ms: i64,
    /// Milliseconds, 1 to 3600000; 0 means not judged.
    pub max_stall_ms: i64,
}

impl Accuracy {
    /// The accuracy itself, where it is valid.
    pub fn checked(self, at: &FieldPath, out: &mut Violations) -> Option<Self> {
        let before = out.as_slice().len();
        above_zero(&at.field("max_error_percent"), self.max_error_percent.0, 100.0, out);
        out.check_range(&at.field("window_ms"), self.window_ms, 500, 3_600_000);
        out.check_range(&at.field("max_stall_ms"), self.max_stall_ms, 0, 3_600_000);
        (out.as_slice().len() == before).then_some(self)
    }
}

/// What to keep; absent means not managed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Controls {
    /// Hard upper limits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
    /// Share of the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<Weight>,
    /// Latency to protect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_target: Option<LatencyTarget>,
    /// CPU latency limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_latency: Option<CpuLatency>,
    /// Readahead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub readahead: Option<Readahead>,
    /// Tolerance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<Accuracy>,
}

impl Controls {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        *self == Controls::default()
    }

    /// Whether nothing but a CPU latency limit is given: the one control that needs no device.
    pub fn is_cpu_latency_alone(&self) -> bool {
        self.cpu_latency.is_some() && Controls { cpu_latency: None, ..self.clone() }.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn wrong(check: impl FnOnce(&FieldPath, &mut Violations)) -> Vec<String> {
        let mut out = Violations::default();
        check(&FieldPath::root("c"), &mut out);
        out.as_slice().iter().map(|violation| format!("{}: {}", violation.field, violation.description)).collect()
    }

    #[test]
    fn bounds_of_absolute_limits() {
        for (key, value, expected) in [
            (LimitKey::Rbps, -1, "c: -1 is negative"),
            (LimitKey::Rbps, 0, "c: 0 is no limit: leave the field out, or say `unlimited: true`"),
            (LimitKey::Wbps, 65_535, "c: 65535 is below the floor of 65536 bytes per second"),
            (LimitKey::Riops, 9, "c: 9 is below the floor of 10 operations per second"),
            (LimitKey::Wiops, 4_294_967_295, "c: 4294967295 is above the kernel's highest of 4294967294 per second"),
            (LimitKey::Wiops, i64::MIN, "c: -9223372036854775808 is negative"),
        ] {
            assert_eq!(wrong(|at, out| assert!(RateLimit::per_second(at, key, value, out).is_none())), [expected]);
        }
        for (key, value) in [
            (LimitKey::Rbps, 65_536),
            (LimitKey::Wbps, i64::MAX),
            (LimitKey::Riops, 10),
            (LimitKey::Wiops, 4_294_967_294),
        ] {
            assert!(wrong(|at, out| assert!(RateLimit::per_second(at, key, value, out).is_some())).is_empty());
        }
    }

    #[test]
    fn percentages_and_not_a_number() {
        for bad in [0.0, -1.0, 100.1, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(wrong(|at, out| assert!(RateLimit::percent(at, bad, out).is_none())).len(), 1, "{bad}");
            let wrong_percentile =
                wrong(|at, out| assert_eq!(LatencyTarget::checked(at, 1, bad, out).is_some(), bad == 0.0));
            assert_eq!(wrong_percentile.len(), usize::from(bad != 0.0), "{bad}");
        }
        for good in [f64::MIN_POSITIVE, 0.1, 100.0] {
            assert!(wrong(|at, out| assert!(RateLimit::percent(at, good, out).is_some())).is_empty(), "{good}");
        }
        assert_eq!(wrong(|at, out| assert!(RateLimit::unlimited(at, false, out).is_none())).len(), 1);
    }

    #[test]
    fn lists_of_cpus() {
        for good in ["0", "0-3,8", "8191"] {
            assert!(is_cpu_list(good), "{good}");
        }
        for bad in [",", "0-", "-1", "3-1", "0,,1", "a", "8192", "0 ", "+1"] {
            assert!(!is_cpu_list(bad), "{bad}");
        }
    }

    #[test]
    fn several_faults_of_one_control_are_all_named() {
        let control = CpuLatency {
            limit_us: -1,
            idle_timeout_ms: 0,
            min_hold_ms: 60_001,
            cpus: "x".into(),
            max_active_fraction: Some(Ratio(1.5)),
            allow_polling: false,
        };
        assert_eq!(wrong(|at, out| drop(control.checked(at, out))).len(), 5);
        let readahead = Readahead { mode: ReadaheadMode::Auto, kib: 128, tune_running: false };
        assert_eq!(wrong(|at, out| assert!(readahead.checked(at, out).is_none())).len(), 1);
        let accuracy = Accuracy { max_error_percent: Ratio(f64::NAN), window_ms: 1, max_stall_ms: -1 };
        assert_eq!(wrong(|at, out| assert!(accuracy.checked(at, out).is_none())).len(), 3);
    }

    proptest! {
        #[test]
        fn ratios_survive_storage(bits in any::<u64>()) {
            let value = f64::from_bits(bits);
            prop_assume!(value.is_finite());
            let text = serde_json::to_string(&Ratio(value)).unwrap();
            prop_assert_eq!(serde_json::from_str::<Ratio>(&text).unwrap().0.to_bits(), bits);
        }
    }
}
