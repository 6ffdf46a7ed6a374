//! What workloads really get: samples counters, keeps windows, and says why a figure is below its limit.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use weir_common::{device::DeviceId, units::LimitKey, units::LimitValue};

use crate::kernel::{CgroupRef, IoCounters, Kernel};

/// A limit that is in force on a target, and where it comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EffectiveLimit {
    /// The strictest value over the cgroup and (v2) its ancestors.
    pub value: LimitValue,
    /// The strictest value is an ancestor's, or somebody else's, not the one that Weir wants here.
    pub foreign: bool,
}

/// One cgroup on one device that is to be measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The cgroup.
    pub cgroup: CgroupRef,
    /// The device.
    pub device: DeviceId,
    /// Limits in force there, for the keys that are managed.
    pub limits: BTreeMap<LimitKey, EffectiveLimit>,
}

/// Why a workload got less than its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// It ran at its own limit.
    OwnLimit,
    /// It asked for less.
    Demand,
    /// An ancestor's or somebody else's stricter limit.
    Parent,
    /// The device gives no more.
    Saturated,
    /// Cannot be told.
    Unknown,
    /// No I/O seen at all yet.
    NotStarted,
}

/// Which counter a figure comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// v1 throttle counters: count at submission.
    V1Throttle,
    /// v2 io.stat: counts after the throttle.
    V2IoStat,
}

/// Cumulative measurement of one target, as it is reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measurement {
    /// Inode number of the cgroup.
    pub cgroup_id: u64,
    /// Device.
    pub device: DeviceId,
    /// Source.
    pub source: Source,
    /// Monotonic clock at which counting began, nanoseconds.
    pub since_ns: u64,
    /// Monotonic clock of the sample, nanoseconds.
    pub at_ns: u64,
    /// Counted since then.
    pub counters: IoCounters,
    /// Nanoseconds by key and reason since then.
    pub reasons: BTreeMap<(LimitKey, Reason), u64>,
}

/// What a workload got of one key, over a window.
#[derive(Clone, Debug, PartialEq)]
pub struct Achieved {
    /// Mean over the window, in the unit of the key.
    pub per_second: f64,
    /// Length of the window.
    pub window: Duration,
    /// Shares of the window by reason, largest first; sums to 1.
    pub reasons: Vec<(Reason, f64)>,
    /// Source.
    pub source: Source,
    /// Time since the end of the window.
    pub age: Duration,
}

/// Handle to the sampler. Clones share it.
#[derive(Clone)]
pub struct Meter {
    inner: Arc<sampler::Shared>,
}

mod history;
mod judge;
mod sampler;

/// The monotonic clock by which samples are stamped, nanoseconds.
pub fn monotonic_ns() -> u64 {
    sampler::now_ns()
}

impl Meter {
    /// Starts the sampler on a thread of its own, with one tick each `period`. It ends when the last handle is dropped.
    ///
    /// # Errors
    /// The thread could not be started.
    pub fn start(kernel: Arc<dyn Kernel>, period: Duration) -> std::io::Result<Meter> {
        Ok(Meter { inner: sampler::start(kernel, period)? })
    }

    /// A meter without a thread: whoever has it calls [`Meter::sample`] each `period`. For many modelled nodes in a process.
    pub fn unattended(kernel: Arc<dyn Kernel>, period: Duration) -> Meter {
        Meter { inner: sampler::unattended(kernel, period) }
    }

    /// Reads all counters once.
    pub fn sample(&self) {
        self.inner.tick();
    }

    /// Looks so far, and how long they took.
    pub fn cost(&self) -> (u64, Duration) {
        self.inner.cost()
    }

    /// Replaces what is measured. Targets that stay keep their history.
    pub fn set_targets(&self, targets: Vec<Target>) {
        self.inner.set_targets(targets);
    }

    /// The latest measurement of every target that has one.
    pub fn latest(&self) -> Vec<Measurement> {
        self.inner.latest()
    }

    /// What a target got over about `window`.
    ///
    /// # Errors
    /// Why it is unknown, one sentence.
    pub fn achieved(
        &self,
        cgroup_id: u64,
        device: DeviceId,
        key: LimitKey,
        window: Duration,
    ) -> Result<Achieved, String> {
        self.inner.achieved(cgroup_id, device, key, window)
    }
}
