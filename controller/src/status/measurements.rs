//! Measurements of one node: rings of cumulative samples, and what was achieved over the last window.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use weir_common::{
    counters::{Ring, Sample},
    device::DeviceId,
    units::{LimitKey, LimitValue},
};

use crate::model::{Achieved, CounterSource, Measurement, ShortfallReason};

/// Window over which achieved figures are taken.
const WINDOW: Duration = Duration::from_secs(10);
/// Cgroups x devices that are kept of a node.
const MAX_SERIES: usize = 8192;
/// A series without a sample for so long is dropped when others come in.
const FORGET_AFTER: Duration = Duration::from_secs(60);
/// Counters of a sample, then the times by limit and reason.
const COUNTERS: usize = 4;
const VALUES: usize = COUNTERS + LimitKey::ALL.len() * ShortfallReason::ALL.len();

#[derive(Debug)]
struct Series {
    ring: Ring<VALUES>,
    source: Option<CounterSource>,
    /// When the latest sample was taken, by this process's clock.
    taken: Instant,
}

/// The limit that is in force for a key, and since when this process knows it; `None` where nothing was measured before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct InForce {
    limit: Option<LimitValue>,
    since: Option<Instant>,
}

/// The measurements of one node.
#[derive(Debug, Default)]
pub(super) struct Measurements {
    series: HashMap<(u64, DeviceId), Series>,
    in_force: HashMap<(u64, DeviceId, LimitKey), InForce>,
}

fn reason_index(key: LimitKey, reason: ShortfallReason) -> usize {
    let reason = match reason {
        ShortfallReason::OwnLimit => 0,
        ShortfallReason::Demand => 1,
        ShortfallReason::Parent => 2,
        ShortfallReason::Saturated => 3,
        ShortfallReason::Unknown => 4,
        ShortfallReason::NotStarted => 5,
    };
    COUNTERS + key.index() * ShortfallReason::ALL.len() + reason
}

impl Measurements {
    /// Adds a batch that was sent at `sent_ns` of the node's monotonic clock and came in at `now`.
    pub(super) fn add(&mut self, sent_ns: u64, rows: &[Measurement], now: Instant) {
        for row in rows {
            let known = self.series.contains_key(&(row.cgroup_id, row.device));
            if !known && self.series.len() >= MAX_SERIES {
                self.series.retain(|_, series| now.saturating_duration_since(series.taken) < FORGET_AFTER);
                if self.series.len() >= MAX_SERIES {
                    continue;
                }
            }
            let mut values = [0; VALUES];
            for (value, counter) in values.iter_mut().zip(row.counters) {
                *value = counter;
            }
            for &(key, reason, nanoseconds) in &row.reasons {
                if let Some(value) = values.get_mut(reason_index(key, reason)) {
                    *value = nanoseconds;
                }
            }
            let age = Duration::from_nanos(sent_ns.saturating_sub(row.at_ns));
            // A sample cannot be older than this process can say; then it counts as just taken, which its window shows.
            let taken = now.checked_sub(age).unwrap_or(now);
            let series = self.series.entry((row.cgroup_id, row.device)).or_insert_with(|| Series {
                ring: Ring::new(WINDOW),
                source: row.source,
                taken,
            });
            series.ring.push(Sample { at_ns: row.at_ns, since_ns: row.since_ns, values });
            if series.ring.last().is_some_and(|last| last.at_ns == row.at_ns) {
                series.source = row.source;
                series.taken = taken;
            }
        }
    }

    /// The limits that a report of `now` shows in force, in place of those before: where one changed, its windows begin
    /// anew, since what was got under another limit says nothing about this one.
    pub(super) fn limits(
        &mut self,
        reported: impl IntoIterator<Item = (u64, DeviceId, LimitKey, Option<LimitValue>)>,
        now: Instant,
    ) {
        let before = std::mem::take(&mut self.in_force);
        for (cgroup_id, device, key, limit) in reported {
            let since = match before.get(&(cgroup_id, device, key)) {
                Some(known) if known.limit == limit => known.since,
                Some(_) => Some(now),
                None => self.series.contains_key(&(cgroup_id, device)).then_some(now),
            };
            self.in_force.insert((cgroup_id, device, key), InForce { limit, since });
        }
    }

    /// What a cgroup got on a device over the last window, which does not reach back before the limit's last change.
    pub(super) fn achieved(
        &self,
        cgroup_id: u64,
        device: DeviceId,
        key: LimitKey,
        now: Instant,
    ) -> Result<Achieved, String> {
        let Some(series) = self.series.get(&(cgroup_id, device)) else {
            return Err("no measurement of this cgroup and device has come in".to_owned());
        };
        let since = self.in_force.get(&(cgroup_id, device, key)).and_then(|in_force| in_force.since);
        let since_ns = since.zip(series.ring.last()).map_or(0, |(since, last)| {
            // Both on the node's clock: this process knows when the latest sample was taken.
            let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
            match series.taken.checked_duration_since(since) {
                Some(earlier) => last.at_ns.saturating_sub(nanoseconds(earlier)),
                None => last.at_ns.saturating_add(nanoseconds(since - series.taken)),
            }
        });
        let Some(window) = series.ring.window_since(since_ns, WINDOW) else {
            if series.ring.window(WINDOW).is_some() {
                return Err("the limit has just changed: two samples under it are needed".to_owned());
            }
            return Err("only one sample so far, or the counters began anew".to_owned());
        };
        let times: Vec<(ShortfallReason, u64)> = ShortfallReason::ALL
            .into_iter()
            .map(|reason| (reason, window.deltas.get(reason_index(key, reason)).copied().unwrap_or(0)))
            .collect();
        let total: u128 = times.iter().map(|&(_, time)| u128::from(time)).sum();
        let mut reasons: Vec<(ShortfallReason, f64)> = if total == 0 {
            vec![(ShortfallReason::Unknown, 1.0)]
        } else {
            times
                .into_iter()
                .filter(|&(_, time)| time > 0)
                .map(|(reason, time)| (reason, time as f64 / total as f64))
                .collect()
        };
        reasons.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        Ok(Achieved {
            per_second: window.per_second(key.index()),
            window: window.span,
            reasons,
            source: series.source,
            age: now.saturating_duration_since(series.taken),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use weir_common::device::DevNum;

    const SECOND: u64 = 1_000_000_000;

    fn device(diskseq: u64) -> DeviceId {
        DeviceId { num: DevNum { major: 7, minor: 0 }, diskseq: Some(diskseq) }
    }

    fn row(second: u64, bytes: u64, own: u64, demand: u64) -> Measurement {
        Measurement {
            cgroup_id: 42,
            device: device(1),
            source: Some(CounterSource::V1Throttle),
            since_ns: 0,
            at_ns: second * SECOND,
            counters: [bytes, 0, 0, 0],
            reasons: vec![
                (LimitKey::Rbps, ShortfallReason::OwnLimit, own * SECOND),
                (LimitKey::Rbps, ShortfallReason::Demand, demand * SECOND),
            ],
        }
    }

    #[test]
    fn a_window_does_not_reach_back_before_a_change_of_the_limit() {
        let mut all = Measurements::default();
        let start = Instant::now();
        let at = |second: u64| start + Duration::from_secs(second);
        let limit = |value| [(42, device(1), LimitKey::Rbps, LimitValue::finite(value))];
        let mut bytes = 0;
        let mut until = |all: &mut Measurements, seconds: std::ops::RangeInclusive<u64>, rate: u64| {
            for second in seconds {
                bytes += rate;
                all.add(second * SECOND, &[row(second, bytes, 0, 0)], at(second));
            }
        };
        let got = |all: &Measurements, second| {
            let achieved = all.achieved(42, device(1), LimitKey::Rbps, at(second));
            achieved.map(|achieved| (achieved.per_second, achieved.window.as_secs()))
        };
        all.limits(limit(1000), at(0));
        until(&mut all, 1..=10, 1000);
        assert_eq!(got(&all, 10), Ok((1000.0, 9)));
        all.limits(limit(200), at(10) + Duration::from_millis(400));
        assert!(got(&all, 10).unwrap_err().contains("just changed"));
        until(&mut all, 11..=11, 520);
        assert!(got(&all, 11).unwrap_err().contains("just changed"), "the change lies within the only step");
        // Reported again and again, as it is.
        all.limits(limit(200), at(11));
        until(&mut all, 12..=14, 200);
        assert_eq!(got(&all, 14), Ok((200.0, 3)));
        until(&mut all, 15..=30, 200);
        assert_eq!(got(&all, 30), Ok((200.0, 10)));
        // A first limit on what was measured without one is a change too; other keys are not touched by it.
        let added = [limit(200), [(42, device(1), LimitKey::Wbps, LimitValue::finite(5))]].concat();
        all.limits(added, at(30) + Duration::from_millis(1));
        assert!(all.achieved(42, device(1), LimitKey::Wbps, at(30)).is_err());
        assert_eq!(got(&all, 30), Ok((200.0, 10)));
    }

    #[test]
    fn a_rate_over_the_window_with_its_reasons_and_age() {
        let mut all = Measurements::default();
        let now = Instant::now();
        assert!(all.achieved(42, device(1), LimitKey::Rbps, now).is_err());
        all.add(SECOND, &[row(1, 1000, 0, 0)], now);
        assert!(all.achieved(42, device(1), LimitKey::Rbps, now).unwrap_err().contains("one sample"));
        for second in 2..=21 {
            all.add(
                second * SECOND + SECOND / 2,
                &[row(second, 1000 * second, second.min(18), second.max(18) - 18)],
                now,
            );
        }
        let later = now + Duration::from_secs(3);
        let achieved = all.achieved(42, device(1), LimitKey::Rbps, later).unwrap();
        assert_eq!((achieved.per_second, achieved.window), (1000.0, WINDOW));
        assert_eq!(achieved.reasons, [(ShortfallReason::OwnLimit, 0.7), (ShortfallReason::Demand, 0.3)]);
        assert_eq!(achieved.age, Duration::from_millis(3500));
        // Another disk under the same number has nothing.
        assert!(all.achieved(42, device(2), LimitKey::Rbps, later).is_err());
        // Without times nobody knows why.
        let writes = all.achieved(42, device(1), LimitKey::Wbps, later).unwrap();
        assert_eq!((writes.per_second, writes.reasons), (0.0, vec![(ShortfallReason::Unknown, 1.0)]));
    }

    #[test]
    fn the_number_of_series_is_bounded_and_old_ones_make_room() {
        let mut all = Measurements::default();
        let now = Instant::now();
        let many = |from: u64| -> Vec<Measurement> {
            (from..from + MAX_SERIES as u64 + 10).map(|id| Measurement { cgroup_id: id, ..row(1, 0, 0, 0) }).collect()
        };
        all.add(SECOND, &many(0), now);
        assert_eq!(all.series.len(), MAX_SERIES);
        all.add(SECOND, &many(1 << 40), now + FORGET_AFTER);
        assert!(all.series.len() <= MAX_SERIES);
        assert!(all.series.contains_key(&(1 << 40, device(1))));
    }

    proptest! {
        #[test]
        fn garbage_never_gives_a_negative_or_absurd_rate(
            rows in proptest::collection::vec((any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>()), 0..20),
        ) {
            let mut all = Measurements::default();
            let now = Instant::now();
            for (at_ns, since_ns, bytes, time) in rows {
                let row = Measurement {
                    at_ns,
                    since_ns: since_ns % 2,
                    counters: [bytes; 4],
                    reasons: vec![(LimitKey::Rbps, ShortfallReason::Parent, time)],
                    ..row(0, 0, 0, 0)
                };
                all.add(time, &[row], now);
                if let Ok(achieved) = all.achieved(42, device(1), LimitKey::Rbps, now) {
                    prop_assert!(achieved.per_second >= 0.0 && achieved.per_second.is_finite());
                    prop_assert!(!achieved.reasons.is_empty());
                    prop_assert!((achieved.reasons.iter().map(|r| r.1).sum::<f64>() - 1.0).abs() < 1e-9);
                }
            }
        }
    }
}
