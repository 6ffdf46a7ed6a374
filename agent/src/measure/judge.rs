//! Why a workload got less than its limit during one tick. PURE.

use std::{collections::BTreeMap, time::Duration};

use weir_common::units::LimitKey;

use super::{EffectiveLimit, Reason};
use crate::kernel::IoCounters;

/// From this share of the limit on, a workload counts as running at it.
const AT_LIMIT: f64 = 0.95;
/// The same for operations: the kernel rounds such limits down to about a multiple of ten.
const AT_OPERATIONS_LIMIT: f64 = 0.88;
/// From this share of the tick with I/O in flight on, a device counts as busy.
const BUSY: f64 = 0.95;
/// From this share of the tick on, a cgroup counts as waiting for I/O.
const STALLED: f64 = 0.5;

/// What is known of one tick of one target.
#[derive(Clone, Debug)]
pub struct Tick<'a> {
    /// Length.
    pub span: Duration,
    /// I/O in it.
    pub delta: IoCounters,
    /// Length of this tick and the few before it: a tick holds ten slices of the throttle or eleven, a few even that out.
    pub recent_span: Duration,
    /// I/O in these.
    pub recent: IoCounters,
    /// Limits in force.
    pub limits: &'a BTreeMap<LimitKey, EffectiveLimit>,
    /// Whether any I/O was counted since counting began.
    pub ever_active: bool,
    /// Share of the tick in which the device had I/O in flight; `None` where unknown.
    pub busy: Option<f64>,
    /// Share of the tick in which the cgroup waited for I/O; `None` where unknown.
    pub stalled: Option<f64>,
    /// The sampler came late by several periods: the rate over the tick is true, but no reason for it.
    pub gap: bool,
}

/// What a counter holds for a key.
pub fn counted(counters: &IoCounters, key: LimitKey) -> u64 {
    match key {
        LimitKey::Rbps => counters.read_bytes,
        LimitKey::Wbps => counters.write_bytes,
        LimitKey::Riops => counters.read_operations,
        LimitKey::Wiops => counters.write_operations,
    }
}

/// The reason for each key that is limited or measured. A byte limit and an operations limit of one direction hold the same
/// I/O back: where one of them is reached, it is the reason for both.
pub fn reasons(tick: &Tick<'_>) -> BTreeMap<LimitKey, Reason> {
    tick.limits.keys().map(|key| (*key, reason(tick, *key))).collect()
}

fn reason(tick: &Tick<'_>, key: LimitKey) -> Reason {
    if tick.gap {
        return Reason::Unknown;
    }
    if !tick.ever_active {
        return Reason::NotStarted;
    }
    let sibling = match key {
        LimitKey::Rbps => LimitKey::Riops,
        LimitKey::Riops => LimitKey::Rbps,
        LimitKey::Wbps => LimitKey::Wiops,
        LimitKey::Wiops => LimitKey::Wbps,
    };
    for reached in [key, sibling] {
        if at_limit(tick, reached) {
            let foreign = tick.limits.get(&reached).is_some_and(|limit| limit.foreign);
            return if foreign { Reason::Parent } else { Reason::OwnLimit };
        }
    }
    let limited = tick.limits.get(&key).is_some_and(|limit| limit.value.get().is_some());
    let busy = tick.busy.is_some_and(|share| share >= BUSY);
    match tick.stalled.map(|share| share >= STALLED) {
        Some(false) => Reason::Demand,
        _ if counted(&tick.delta, key) == 0 && tick.stalled.is_none() => Reason::Demand,
        Some(true) if busy => Reason::Saturated,
        Some(true) => Reason::Unknown,
        // Nobody says whether the cgroup waits. A busy device may be busy with others' I/O.
        None if busy && limited => Reason::Unknown,
        None if busy => Reason::Saturated,
        None => Reason::Demand,
    }
}

fn at_limit(tick: &Tick<'_>, key: LimitKey) -> bool {
    let Some(limit) = tick.limits.get(&key).and_then(|limit| limit.value.get()) else { return false };
    let threshold = if key.is_bytes() { AT_LIMIT } else { AT_OPERATIONS_LIMIT };
    let reached = |counters: &IoCounters, span: Duration| {
        span > Duration::ZERO && counted(counters, key) as f64 >= threshold * limit as f64 * span.as_secs_f64()
    };
    reached(&tick.delta, tick.span) || reached(&tick.recent, tick.recent_span)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use weir_common::units::LimitValue;

    fn limit(value: u64, foreign: bool) -> EffectiveLimit {
        EffectiveLimit { value: LimitValue::finite(value).unwrap_or(LimitValue::Unlimited), foreign }
    }

    fn tick(limits: &BTreeMap<LimitKey, EffectiveLimit>, read_bytes: u64) -> Tick<'_> {
        let delta = IoCounters { read_bytes, read_operations: read_bytes / 4096, ..Default::default() };
        let span = Duration::from_secs(1);
        Tick {
            span,
            delta,
            recent_span: span,
            recent: delta,
            limits,
            ever_active: true,
            busy: Some(0.2),
            stalled: None,
            gap: false,
        }
    }

    #[test]
    fn each_reason() {
        let own = BTreeMap::from([(LimitKey::Rbps, limit(1_000_000, false))]);
        let of = |tick: &Tick<'_>| reasons(tick)[&LimitKey::Rbps];
        assert_eq!(of(&tick(&own, 960_000)), Reason::OwnLimit);
        assert_eq!(of(&tick(&own, 300_000)), Reason::Demand);
        assert_eq!(of(&Tick { stalled: Some(0.1), busy: Some(1.0), ..tick(&own, 300_000) }), Reason::Demand);
        assert_eq!(of(&Tick { stalled: Some(0.9), busy: Some(1.0), ..tick(&own, 300_000) }), Reason::Saturated);
        assert_eq!(of(&Tick { stalled: Some(0.9), busy: Some(0.3), ..tick(&own, 300_000) }), Reason::Unknown);
        assert_eq!(of(&Tick { busy: Some(1.0), ..tick(&own, 300_000) }), Reason::Unknown);
        assert_eq!(of(&Tick { gap: true, ..tick(&own, 960_000) }), Reason::Unknown);
        assert_eq!(of(&Tick { ever_active: false, ..tick(&own, 0) }), Reason::NotStarted);
        assert_eq!(of(&tick(&own, 0)), Reason::Demand);
        let parent = BTreeMap::from([(LimitKey::Rbps, limit(1_000_000, true))]);
        assert_eq!(of(&tick(&parent, 960_000)), Reason::Parent);
        let none = BTreeMap::from([(LimitKey::Rbps, limit(0, false))]);
        assert_eq!(of(&Tick { busy: Some(1.0), ..tick(&none, 300_000) }), Reason::Saturated);
    }

    #[test]
    fn a_reached_operations_limit_is_the_reason_for_the_bytes() {
        let limits =
            BTreeMap::from([(LimitKey::Rbps, limit(1_000_000_000, false)), (LimitKey::Riops, limit(99, false))]);
        let of = reasons(&tick(&limits, 90 * 4096));
        assert_eq!(of[&LimitKey::Riops], Reason::OwnLimit);
        assert_eq!(of[&LimitKey::Rbps], Reason::OwnLimit);
    }

    proptest! {
        #[test]
        fn every_limited_key_has_one_reason_and_nothing_panics(
            value in 1u64.., bytes in any::<u64>(), ms in 0u64..100_000, busy in proptest::option::of(-1.0f64..3.0),
            stalled in proptest::option::of(-1.0f64..3.0),
        ) {
            let limits = BTreeMap::from([(LimitKey::Rbps, limit(value, false)), (LimitKey::Wiops, limit(value, true))]);
            let mut tick = tick(&limits, bytes);
            tick.span = Duration::from_millis(ms);
            tick.busy = busy;
            tick.stalled = stalled;
            let all = reasons(&tick);
            prop_assert_eq!(all.len(), 2);
        }
    }
}
