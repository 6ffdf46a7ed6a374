//! The sampler's thread: ticks at absolute times on the monotonic clock, reads each cgroup's counters between two looks at the
//! clock, and stamps them with the middle.

use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use rustix::time::{ClockId, clock_gettime};
use weir_common::{device::DeviceId, units::LimitKey};

use super::{
    Achieved, Measurement, Source, Target,
    history::{History, Reading},
};
use crate::kernel::{CgroupRef, CgroupVersion, IoCounters, Kernel};

type Key = (u64, DeviceId);

/// Why a target has no figure.
const NOT_YET: &str = "measuring has just begun: two samples are needed";
const NO_COUNTERS: &str =
    "the kernel keeps no throttle counters for this device before a first limit is written for it (cgroup v1)";

enum Slot {
    /// Not sampled yet, or it could not be: why.
    Waiting(Target, String),
    Running(Box<History>),
}

impl Slot {
    fn target(&self) -> &Target {
        match self {
            Slot::Waiting(target, _) => target,
            Slot::Running(history) => &history.target,
        }
    }
}

pub(super) struct Shared {
    kernel: Arc<dyn Kernel>,
    period: Duration,
    slots: Mutex<BTreeMap<Key, Slot>>,
    /// Ticks so far, and how long they took, nanoseconds.
    cost: (AtomicU64, AtomicU64),
}

/// The monotonic clock, nanoseconds.
pub(super) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(u64::try_from(now.tv_nsec).unwrap_or(0))
}

pub(super) fn unattended(kernel: Arc<dyn Kernel>, period: Duration) -> Arc<Shared> {
    Arc::new(Shared { kernel, period, slots: Mutex::default(), cost: Default::default() })
}

pub(super) fn start(kernel: Arc<dyn Kernel>, period: Duration) -> io::Result<Arc<Shared>> {
    let shared = unattended(kernel, period);
    let weak = Arc::downgrade(&shared);
    std::thread::Builder::new().name("sampler".into()).spawn(move || run(&weak, period))?;
    Ok(shared)
}

fn run(shared: &Weak<Shared>, period: Duration) {
    let period_ns = u64::try_from(period.as_nanos()).unwrap_or(u64::MAX).max(1);
    let mut due = now_ns();
    while let Some(shared) = shared.upgrade() {
        shared.tick();
        drop(shared);
        let now = now_ns();
        due = due.saturating_add(period_ns);
        if due <= now {
            // Came late: the next multiple of the period, without making up for what was missed.
            due = now + period_ns - (now - due) % period_ns;
        }
        std::thread::sleep(Duration::from_nanos(due - now));
    }
}

impl Shared {
    fn slots(&self) -> MutexGuard<'_, BTreeMap<Key, Slot>> {
        // Whoever panicked while holding it left whole slots behind.
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_targets(&self, targets: Vec<Target>) {
        let mut slots = self.slots();
        let mut old = std::mem::take(&mut *slots);
        for target in targets {
            let key = (target.cgroup.id, target.device);
            let slot = match old.remove(&key) {
                Some(Slot::Running(mut history)) => {
                    history.target = target;
                    Slot::Running(history)
                }
                Some(Slot::Waiting(_, why)) => Slot::Waiting(target, why),
                None => Slot::Waiting(target, NOT_YET.to_owned()),
            };
            slots.insert(key, slot);
        }
    }

    /// Reads everything once.
    pub(super) fn tick(&self) {
        let began = now_ns();
        self.look();
        self.cost.0.fetch_add(1, Ordering::Relaxed);
        self.cost.1.fetch_add(now_ns().saturating_sub(began), Ordering::Relaxed);
    }

    /// Ticks so far, and how long they took.
    pub(super) fn cost(&self) -> (u64, Duration) {
        (self.cost.0.load(Ordering::Relaxed), Duration::from_nanos(self.cost.1.load(Ordering::Relaxed)))
    }

    fn look(&self) {
        let mut cgroups: BTreeMap<CgroupRef, Vec<Key>> = BTreeMap::new();
        for (key, slot) in self.slots().iter() {
            cgroups.entry(slot.target().cgroup.clone()).or_default().push(*key);
        }
        let mut busy: BTreeMap<DeviceId, Option<u32>> = BTreeMap::new();
        for (cgroup, keys) in cgroups {
            let stalled_us = self.kernel.stalled_us(&cgroup);
            let before = now_ns();
            let counters = self.kernel.read_counters(&cgroup);
            let at_ns = before + (now_ns() - before) / 2;
            for key in keys {
                let busy_ms = *busy.entry(key.1).or_insert_with(|| self.kernel.device_busy_ms(key.1.num));
                let reading = match &counters {
                    Ok(all) => Ok(all.get(&key.1.num).copied()),
                    Err(error) => Err(error.to_string()),
                };
                self.store(key, reading, |raw| Reading { at_ns, raw, busy_ms, stalled_us });
            }
        }
    }

    fn store(&self, key: Key, counters: Result<Option<IoCounters>, String>, reading: impl Fn(IoCounters) -> Reading) {
        let mut slots = self.slots();
        // The targets may have changed meanwhile.
        let Some(slot) = slots.get_mut(&key) else { return };
        let source = match self.kernel.version() {
            CgroupVersion::V1 => Source::V1Throttle,
            CgroupVersion::V2 => Source::V2IoStat,
        };
        let raw = match counters {
            Ok(Some(raw)) => raw,
            // No row is no I/O yet, where the kernel counts at all.
            Ok(None) if source == Source::V2IoStat || counts_since_a_limit(slot) => IoCounters::default(),
            Ok(None) => {
                *slot = Slot::Waiting(slot.target().clone(), NO_COUNTERS.to_owned());
                return;
            }
            Err(why) => {
                *slot = Slot::Waiting(slot.target().clone(), why);
                return;
            }
        };
        match slot {
            Slot::Running(history) => history.add(reading(raw), self.period),
            Slot::Waiting(target, _) => {
                let history = History::new(target.clone(), source, reading(raw));
                *slot = Slot::Running(Box::new(history));
            }
        }
    }

    pub(super) fn latest(&self) -> Vec<Measurement> {
        self.slots()
            .values()
            .filter_map(|slot| match slot {
                Slot::Running(history) => Some(history.measurement()),
                Slot::Waiting(..) => None,
            })
            .collect()
    }

    pub(super) fn achieved(
        &self,
        cgroup_id: u64,
        device: DeviceId,
        key: LimitKey,
        window: Duration,
    ) -> Result<Achieved, String> {
        match self.slots().get(&(cgroup_id, device)) {
            None => Err("it is not measured".to_owned()),
            Some(Slot::Waiting(_, why)) => Err(why.clone()),
            Some(Slot::Running(history)) => history.achieved(key, window, now_ns()).ok_or_else(|| NOT_YET.to_owned()),
        }
    }
}

/// v1: a finite limit is in force, so the device has counters; or they were seen before.
fn counts_since_a_limit(slot: &Slot) -> bool {
    matches!(slot, Slot::Running(_)) || slot.target().limits.values().any(|limit| limit.value.get().is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{kernel::fake::FakeKernel, measure::EffectiveLimit, measure::Meter};
    use weir_common::{device::DevNum, units::LimitValue};

    const DEVICE: DevNum = DevNum { major: 7, minor: 0 };

    fn target(cgroup: &CgroupRef, limit: Option<u64>) -> Target {
        let value = limit.and_then(LimitValue::finite).unwrap_or(LimitValue::Unlimited);
        Target {
            cgroup: cgroup.clone(),
            device: DeviceId { num: DEVICE, diskseq: Some(1) },
            limits: BTreeMap::from([(LimitKey::Rbps, EffectiveLimit { value, foreign: false })]),
        }
    }

    fn until<T>(mut check: impl FnMut() -> Option<T>) -> T {
        for _ in 0..500 {
            if let Some(value) = check() {
                return value;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("not in time")
    }

    #[test]
    fn v1_without_a_first_limit_is_unknown_and_says_why() {
        let fake = Arc::new(FakeKernel::new(CgroupVersion::V1));
        fake.add_device(DEVICE);
        let cgroup = fake.add_cgroup("/a");
        let meter = Meter::start(fake.clone(), Duration::from_millis(20)).unwrap();
        let target = target(&cgroup, None);
        meter.set_targets(vec![target.clone()]);
        let why = || meter.achieved(cgroup.id, target.device, LimitKey::Rbps, Duration::from_secs(1)).unwrap_err();
        until(|| why().contains("first limit").then_some(()));
        // Somebody's limit on the device: counters exist from here on, and what comes is a rate.
        let other = fake.add_cgroup("/b");
        fake.write_raw(&fake.limit_file(&other, LimitKey::Rbps), "7:0 1000").unwrap();
        until(|| {
            fake.add_io("/a", DEVICE, IoCounters { read_bytes: 100, ..Default::default() });
            let achieved = meter.achieved(cgroup.id, target.device, LimitKey::Rbps, Duration::from_secs(1));
            achieved.ok().filter(|achieved| achieved.per_second > 0.0)
        });
    }

    #[test]
    fn a_cgroup_that_comes_back_under_its_name_inherits_nothing() {
        let fake = Arc::new(FakeKernel::new(CgroupVersion::V2));
        fake.add_device(DEVICE);
        let cgroup = fake.add_cgroup("/a");
        fake.add_io("/a", DEVICE, IoCounters { read_bytes: 1 << 40, ..Default::default() });
        let meter = Meter::start(fake.clone(), Duration::from_millis(20)).unwrap();
        meter.set_targets(vec![target(&cgroup, Some(1000))]);
        until(|| meter.latest().first().cloned().filter(|m| m.at_ns > m.since_ns));
        assert_eq!(meter.latest()[0].counters.read_bytes, 0, "what was before is nobody's rate");
        let again = fake.add_cgroup("/a");
        let error = until(|| {
            meter.achieved(cgroup.id, target(&cgroup, None).device, LimitKey::Rbps, Duration::from_secs(1)).err()
        });
        assert!(error.contains("Identity"), "{error}");
        meter.set_targets(vec![target(&again, Some(1000))]);
        until(|| meter.latest().first().cloned().filter(|m| m.cgroup_id == again.id));
    }
}
