//! What is kept of one target: its counters since a baseline, the time by reason, and the windows. PURE: samples come in.

use std::{collections::BTreeMap, time::Duration};

use weir_common::{
    counters::{Ring, Sample},
    units::LimitKey,
};

use super::{
    Achieved, Measurement, Reason, Source, Target,
    judge::{self, Tick},
};
use crate::kernel::IoCounters;

/// All reasons, in the order in which their times are kept.
const REASONS: [Reason; 6] =
    [Reason::OwnLimit, Reason::Demand, Reason::Parent, Reason::Saturated, Reason::Unknown, Reason::NotStarted];
/// Four counters, then for each key the time by reason.
const VALUES: usize = 4 + 4 * REASONS.len();
/// Longest window.
const KEEP: Duration = Duration::from_secs(60);
/// Ticks that are looked at together where one alone is too coarse.
const RECENT: Duration = Duration::from_secs(3);

/// One reading.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    /// Monotonic clock, nanoseconds.
    pub at_ns: u64,
    /// The kernel's counters.
    pub raw: IoCounters,
    /// Cumulative, as the kernel has it.
    pub busy_ms: Option<u32>,
    /// Cumulative, as the kernel has it.
    pub stalled_us: Option<u64>,
}

#[derive(Debug)]
pub(super) struct History {
    pub target: Target,
    source: Source,
    since_ns: u64,
    base: IoCounters,
    last: Reading,
    reasons: BTreeMap<(LimitKey, Reason), u64>,
    ring: Ring<VALUES>,
}

fn minus(new: &IoCounters, old: &IoCounters) -> IoCounters {
    IoCounters {
        read_bytes: new.read_bytes.saturating_sub(old.read_bytes),
        write_bytes: new.write_bytes.saturating_sub(old.write_bytes),
        read_operations: new.read_operations.saturating_sub(old.read_operations),
        write_operations: new.write_operations.saturating_sub(old.write_operations),
    }
}

impl History {
    /// Begins with a first reading: what was counted before is nobody's rate.
    pub fn new(target: Target, source: Source, first: Reading) -> History {
        let mut history = History {
            target,
            source,
            since_ns: first.at_ns,
            base: first.raw,
            last: first,
            reasons: BTreeMap::new(),
            ring: Ring::new(KEEP),
        };
        history.record();
        history
    }

    /// Adds a reading. Counters that went back are another life: counting begins anew.
    pub fn add(&mut self, reading: Reading, period: Duration) {
        let went_back =
            LimitKey::ALL.iter().any(|key| judge::counted(&reading.raw, *key) < judge::counted(&self.last.raw, *key));
        if went_back {
            *self = History::new(self.target.clone(), self.source, reading);
            return;
        }
        let span = Duration::from_nanos(reading.at_ns.saturating_sub(self.last.at_ns));
        if span.is_zero() {
            return;
        }
        let delta = minus(&reading.raw, &self.last.raw);
        let share = |part: Option<Duration>| part.map(|part| part.as_secs_f64() / span.as_secs_f64());
        let busy = reading.busy_ms.zip(self.last.busy_ms).map(|(new, old)| {
            // The kernel prints 32 bits.
            Duration::from_millis(u64::from(new.wrapping_sub(old)))
        });
        let stalled = reading
            .stalled_us
            .zip(self.last.stalled_us)
            .map(|(new, old)| Duration::from_micros(new.saturating_sub(old)));
        let (recent_span, recent) = self.recent(&reading, span, delta);
        let total = minus(&reading.raw, &self.base);
        let tick = Tick {
            span,
            delta,
            recent_span,
            recent,
            limits: &self.target.limits,
            ever_active: total != IoCounters::default(),
            busy: share(busy),
            stalled: share(stalled),
            gap: span > period * 3,
        };
        let nanoseconds = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        for (key, reason) in judge::reasons(&tick) {
            *self.reasons.entry((key, reason)).or_default() += nanoseconds;
        }
        self.last = reading;
        self.record();
    }

    /// This tick and the few before it.
    fn recent(&self, reading: &Reading, span: Duration, delta: IoCounters) -> (Duration, IoCounters) {
        match self.ring.window(RECENT.saturating_sub(span)) {
            Some(window) => {
                let before = IoCounters {
                    read_bytes: window.deltas[0],
                    write_bytes: window.deltas[1],
                    read_operations: window.deltas[2],
                    write_operations: window.deltas[3],
                };
                let sum = IoCounters {
                    read_bytes: delta.read_bytes + before.read_bytes,
                    write_bytes: delta.write_bytes + before.write_bytes,
                    read_operations: delta.read_operations + before.read_operations,
                    write_operations: delta.write_operations + before.write_operations,
                };
                let from = window.end_ns.saturating_sub(u64::try_from(window.span.as_nanos()).unwrap_or(u64::MAX));
                (Duration::from_nanos(reading.at_ns.saturating_sub(from)), sum)
            }
            None => (span, delta),
        }
    }

    fn record(&mut self) {
        let total = minus(&self.last.raw, &self.base);
        let mut values = [0; VALUES];
        for key in LimitKey::ALL {
            values[key.index()] = judge::counted(&total, key);
            for (i, reason) in REASONS.iter().enumerate() {
                values[4 + key.index() * REASONS.len() + i] = self.reasons.get(&(key, *reason)).copied().unwrap_or(0);
            }
        }
        self.ring.push(Sample { at_ns: self.last.at_ns, since_ns: self.since_ns, values });
    }

    /// As it is reported.
    pub fn measurement(&self) -> Measurement {
        Measurement {
            cgroup_id: self.target.cgroup.id,
            device: self.target.device,
            source: self.source,
            since_ns: self.since_ns,
            at_ns: self.last.at_ns,
            counters: minus(&self.last.raw, &self.base),
            reasons: self.reasons.clone(),
        }
    }

    /// What was got of a key over about `wanted`; `None` before the second sample.
    pub fn achieved(&self, key: LimitKey, wanted: Duration, now_ns: u64) -> Option<Achieved> {
        let window = self.ring.window(wanted)?;
        let span = window.span.as_secs_f64();
        let mut reasons: Vec<(Reason, f64)> = REASONS
            .iter()
            .enumerate()
            .map(|(i, reason)| {
                let nanoseconds = window.deltas[4 + key.index() * REASONS.len() + i];
                (*reason, Duration::from_nanos(nanoseconds).as_secs_f64() / span)
            })
            .filter(|(_, share)| *share > 0.0)
            .collect();
        // Time before the key was managed has no reason.
        let told: f64 = reasons.iter().map(|(_, share)| share).sum();
        if told < 0.999 {
            match reasons.iter_mut().find(|(reason, _)| *reason == Reason::Unknown) {
                Some((_, share)) => *share += 1.0 - told,
                None => reasons.push((Reason::Unknown, 1.0 - told)),
            }
        }
        reasons.sort_by(|a, b| b.1.total_cmp(&a.1));
        Some(Achieved {
            per_second: window.per_second(key.index()),
            window: window.span,
            reasons,
            source: self.source,
            age: Duration::from_nanos(now_ns.saturating_sub(window.end_ns)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{kernel::CgroupRef, measure::EffectiveLimit};
    use weir_common::{device::DeviceId, units::LimitValue};

    const SECOND: Duration = Duration::from_secs(1);

    fn target() -> Target {
        let limit = EffectiveLimit { value: LimitValue::finite(1000).unwrap(), foreign: false };
        Target {
            cgroup: CgroupRef { path: "/a".into(), id: 1 },
            device: DeviceId { num: "7:0".parse().unwrap(), diskseq: Some(1) },
            limits: BTreeMap::from([(LimitKey::Rbps, limit)]),
        }
    }

    fn reading(at_s: u64, read_bytes: u64) -> Reading {
        let raw = IoCounters { read_bytes, read_operations: read_bytes / 100, ..Default::default() };
        Reading { at_ns: at_s * 1_000_000_000, raw, busy_ms: None, stalled_us: None }
    }

    #[test]
    fn a_lifetime_is_no_rate_and_going_back_is_a_new_life() {
        let mut history = History::new(target(), Source::V2IoStat, reading(10, 1 << 40));
        assert_eq!(history.achieved(LimitKey::Rbps, SECOND * 10, 0), None);
        for i in 1..=20 {
            history.add(reading(10 + i, (1 << 40) + i * 1000), SECOND);
        }
        let achieved = history.achieved(LimitKey::Rbps, SECOND * 10, 31_500_000_000).unwrap();
        assert!((achieved.per_second - 1000.0).abs() < 1e-9);
        assert_eq!(achieved.window, SECOND * 10);
        assert_eq!(achieved.reasons, [(Reason::OwnLimit, 1.0)]);
        assert_eq!(achieved.age, Duration::from_millis(1500));
        assert_eq!(history.measurement().counters.read_bytes, 20_000);

        history.add(reading(31, 500), SECOND);
        assert_eq!(history.achieved(LimitKey::Rbps, SECOND * 10, 0), None);
        assert_eq!(history.measurement().since_ns, 31_000_000_000);
        assert_eq!(history.measurement().counters.read_bytes, 0);
    }

    #[test]
    fn a_pause_of_the_sampler_is_a_true_rate_without_a_reason() {
        let mut history = History::new(target(), Source::V1Throttle, reading(1, 0));
        history.add(reading(2, 1000), SECOND);
        history.add(reading(62, 61_000), SECOND);
        let achieved = history.achieved(LimitKey::Rbps, SECOND * 60, 62_000_000_000).unwrap();
        assert!((achieved.per_second - 1000.0).abs() < 1e-9);
        assert_eq!(achieved.reasons[0].0, Reason::Unknown);
    }
}
