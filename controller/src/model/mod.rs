//! Domain types of the controller: what an intent, a node and a report are, always in a valid state.
//!
//! May not touch the contract's generated types, the store or the network. Constructors take a [`FieldPath`] and a list of
//! [`Violations`], so that a caller learns everything that is wrong with its input at once. `serde` forms are those of
//! the store.

mod controls;
mod earlier;
mod intent;
mod names;
mod node;
mod report;
mod selectors;
mod time;
mod violations;

pub use controls::{
    Accuracy, Controls, CpuLatency, LatencyTarget, Limits, RateLimit, Ratio, Readahead, ReadaheadMode, Weight,
};
pub use earlier::Earlier;
pub use intent::{
    Intent, IntentRecord, IntentSpec, MAX_DESCRIPTION_BYTES, Mode, NotImplemented, Scope, SpecParts, check_labels,
};
pub use names::{IntentName, NameError, NodeName, ResourceId};
pub use node::{CgroupVersion, Device, DeviceKind, Directive, Labels, NodeFacts, NodeRecord, Partition};
pub use report::{
    Achieved, AgentReport, Condition, ConditionDetail, ConditionStatus, CounterSource, KernelWrite, Measurement,
    RuleState, RuleStatus, SettingStatus, ShortfallReason,
};
pub use selectors::{
    DeviceFields, DeviceMatch, DeviceSelector, DeviceTerm, NodeSelector, NodeTerm, QosClass, Selector, Term,
    WorkloadSelector, WorkloadTerm,
};
pub use time::WallTime;
pub use violations::{FieldPath, Violation, Violations};
