//! What agents report. Never trusted as desired state.

use std::sync::Arc;

use weir_common::{
    device::DeviceId,
    fence::Fence,
    units::{LimitKey, LimitValue},
};

use super::WallTime;

/// Whether a condition holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionStatus {
    /// It holds.
    True,
    /// It does not.
    False,
    /// Nobody can tell.
    Unknown,
}

/// A typed state with a reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// CamelCase name.
    pub kind: String,
    /// Whether it holds.
    pub status: ConditionStatus,
    /// CamelCase documented cause.
    pub reason: String,
    /// One sentence.
    pub message: String,
    /// Generation that was looked at; 0 where it is not about an intent.
    pub observed_generation: u64,
    /// When the status last changed.
    pub last_transition: Option<WallTime>,
    /// Facts for programs.
    pub detail: Option<ConditionDetail>,
}

impl Condition {
    /// A condition that holds, without detail.
    pub fn holds(kind: &str, reason: &str, message: impl Into<String>) -> Self {
        Condition {
            kind: kind.to_owned(),
            status: ConditionStatus::True,
            reason: reason.to_owned(),
            message: message.into(),
            observed_generation: 0,
            last_transition: None,
            detail: None,
        }
    }
}

/// Facts of a condition for programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConditionDetail {
    /// An access to a kernel file.
    KernelWrite(KernelWrite),
    /// Fields of the intent.
    Fields(Vec<String>),
}

/// One access to a kernel file and how the kernel answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelWrite {
    /// Absolute path.
    pub file: String,
    /// What was written.
    pub value: String,
    /// errno; 0 where the value read back differs.
    pub errno: i32,
    /// Its symbol.
    pub errno_name: String,
    /// What was read back.
    pub read_back: String,
}

/// State of one intent on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleState {
    /// Not answered.
    Pending,
    /// Every setting holds.
    Applied,
    /// At least one setting does not.
    Failed,
    /// Nothing matches.
    NoMatch,
    /// Paused or released.
    Suspended,
}

/// One limit on one cgroup and device, as the agent reports it: two of the three numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingStatus {
    /// Path of the cgroup.
    pub cgroup_path: String,
    /// Inode of its directory.
    pub cgroup_id: u64,
    /// The device.
    pub device: DeviceId,
    /// Its kernel name.
    pub device_name: String,
    /// Which limit.
    pub key: LimitKey,
    /// After merging.
    pub intended: Option<LimitValue>,
    /// Read back.
    pub effective: Option<LimitValue>,
    /// Why the agent says that it will never be measured; empty where it does not.
    pub achieved_unknown: String,
    /// The kernel file.
    pub file: String,
    /// Cgroup whose limit is the effective one.
    pub effective_from: String,
    /// Intent that won.
    pub intent: String,
}

/// State of a rule on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleStatus {
    /// Uid of the intent.
    pub uid: String,
    /// Name of the intent.
    pub intent: String,
    /// Generation.
    pub generation: u64,
    /// State.
    pub state: RuleState,
    /// Conditions.
    pub conditions: Vec<Condition>,
    /// The settings that it claims, each shared with the other rules of the report that do.
    pub settings: Vec<Arc<SettingStatus>>,
}

/// An agent's whole report, as Ack and StatusUpdate carry it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentReport {
    /// The plan in force.
    pub fence: Option<Fence>,
    /// Every rule of it.
    pub rules: Vec<RuleStatus>,
    /// Settings owned in the kernel.
    pub settings_held: u32,
    /// Conditions of the node.
    pub conditions: Vec<Condition>,
    /// Intents for which settings are still owned.
    pub uids_held: Vec<String>,
}

/// Why a workload got less than its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ShortfallReason {
    /// It ran at its limit.
    OwnLimit,
    /// It asked for less.
    Demand,
    /// A stricter limit elsewhere.
    Parent,
    /// The device gives no more.
    Saturated,
    /// Nobody can tell.
    Unknown,
    /// No I/O yet.
    NotStarted,
}

impl ShortfallReason {
    /// All reasons, in order.
    pub const ALL: [ShortfallReason; 6] = [
        ShortfallReason::OwnLimit,
        ShortfallReason::Demand,
        ShortfallReason::Parent,
        ShortfallReason::Saturated,
        ShortfallReason::Unknown,
        ShortfallReason::NotStarted,
    ];
}

/// Which counter a figure was taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterSource {
    /// Counts at submission.
    V1Throttle,
    /// Counts when the throttle has released the I/O.
    V2IoStat,
}

/// Cumulative counters of one cgroup on one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measurement {
    /// Inode of the cgroup's directory.
    pub cgroup_id: u64,
    /// The device.
    pub device: DeviceId,
    /// Where the counters come from; absent where the agent did not say.
    pub source: Option<CounterSource>,
    /// Monotonic clock at which counting began, nanoseconds.
    pub since_ns: u64,
    /// Monotonic clock of the sample, nanoseconds.
    pub at_ns: u64,
    /// By [`LimitKey::ALL`]: read bytes, written bytes, read operations, write operations.
    pub counters: [u64; 4],
    /// Nanoseconds by limit and reason since counting began.
    pub reasons: Vec<(LimitKey, ShortfallReason, u64)>,
}

/// What a workload got, over a window.
#[derive(Clone, Debug, PartialEq)]
pub struct Achieved {
    /// Mean over the window, in the unit of the key.
    pub per_second: f64,
    /// Length of the window.
    pub window: std::time::Duration,
    /// Reasons with their shares of the window, 0 to 1, largest first; never empty.
    pub reasons: Vec<(ShortfallReason, f64)>,
    /// Where the figure comes from.
    pub source: Option<CounterSource>,
    /// Time since the end of the window.
    pub age: std::time::Duration,
}
