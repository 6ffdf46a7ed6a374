//! Typed states with a reason, as they are reported: what `resolve` finds, what `enforce` meets, what `link` sends.
//! Values only.

use std::time::SystemTime;

use crate::kernel::{KernelError, errno_name};

/// Type of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConditionType {
    /// Every setting of the rule holds what is intended.
    Applied,
    /// The kernel refused a write, or a value could not be read, or the journal could not be written.
    WriteFailed,
    /// The kernel took a write and holds something else.
    ReadBackDiffers,
    /// No cgroup matches.
    NoWorkload,
    /// No device matches, or a named one is not there.
    NoDevice,
    /// A named mount has no block device below it.
    NoBlockDevice,
    /// A named path is a character device.
    CharacterDevice,
    /// A named path is an NVMe controller, not one of its namespaces.
    ControllerNode,
    /// A named file system spreads over several devices.
    SeveralDevices,
    /// A limit on a matched device would have no effect: the I/O comes to it below the place where the kernel throttles.
    LimitBypassed,
    /// Several levels of one stack match: the topmost alone is limited, and what is not reached through it is not.
    StackTopTaken,
    /// A matched cgroup belongs to the system, and the rule does not allow that.
    SystemCgroupRefused,
    /// The root cgroup was matched; it is never limited.
    RootCgroupRefused,
    /// The agent's own cgroup was matched, and the rule does not allow that.
    OwnCgroupRefused,
    /// One limit is shared out among several cgroups.
    SplitAcrossParts,
    /// A value was below the node's floor.
    RaisedToFloor,
    /// At release the kernel held a value that was neither Weir's nor the original: it was left alone.
    ForeignValueKept,
    /// The io controller is not enabled for the cgroup.
    ControllerNotEnabled,
    /// The rule has parts that this agent does not know.
    UnsupportedByAgent,
    /// The node is paused or released.
    Suspended,
    /// All keys of the rule were lost to others.
    Overruled,
    /// The journal was damaged and set aside.
    LedgerQuarantined,
    /// The stored plan was damaged and set aside.
    PlanQuarantined,
    /// The block devices cannot be listed: what is in force is kept as it was.
    DevicesUnreadable,
    /// The cgroups cannot be listed: what is in force is kept as it was.
    WorkloadsUnreadable,
    /// The agent cannot tell its own cgroup, so no intent is kept from limiting it.
    OwnCgroupUnknown,
    /// The loop that enforces has not come round for long: an access to the kernel or to the state directory hangs.
    EnforcementStalled,
    /// Out of contact with every controller.
    Stale,
    /// The node is told to change nothing.
    Paused,
    /// The node is told to put everything back.
    Released,
}

impl ConditionType {
    /// The name in the contract.
    pub fn name(self) -> &'static str {
        match self {
            ConditionType::Applied => "Applied",
            ConditionType::WriteFailed => "WriteFailed",
            ConditionType::ReadBackDiffers => "ReadBackDiffers",
            ConditionType::NoWorkload => "NoWorkload",
            ConditionType::NoDevice => "NoDevice",
            ConditionType::NoBlockDevice => "NoBlockDevice",
            ConditionType::CharacterDevice => "CharacterDevice",
            ConditionType::ControllerNode => "ControllerNode",
            ConditionType::SeveralDevices => "SeveralDevices",
            ConditionType::LimitBypassed => "LimitBypassed",
            ConditionType::StackTopTaken => "StackTopTaken",
            ConditionType::SystemCgroupRefused => "SystemCgroupRefused",
            ConditionType::RootCgroupRefused => "RootCgroupRefused",
            ConditionType::OwnCgroupRefused => "OwnCgroupRefused",
            ConditionType::SplitAcrossParts => "SplitAcrossParts",
            ConditionType::RaisedToFloor => "RaisedToFloor",
            ConditionType::ForeignValueKept => "ForeignValueKept",
            ConditionType::ControllerNotEnabled => "ControllerNotEnabled",
            ConditionType::UnsupportedByAgent => "UnsupportedByAgent",
            ConditionType::Suspended => "Suspended",
            ConditionType::Overruled => "Overruled",
            ConditionType::LedgerQuarantined => "LedgerQuarantined",
            ConditionType::PlanQuarantined => "PlanQuarantined",
            ConditionType::DevicesUnreadable => "DevicesUnreadable",
            ConditionType::WorkloadsUnreadable => "WorkloadsUnreadable",
            ConditionType::OwnCgroupUnknown => "OwnCgroupUnknown",
            ConditionType::EnforcementStalled => "EnforcementStalled",
            ConditionType::Stale => "Stale",
            ConditionType::Paused => "Paused",
            ConditionType::Released => "Released",
        }
    }
}

/// Whether a condition holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Holds {
    /// It holds.
    True,
    /// It does not.
    False,
    /// Cannot be told.
    Unknown,
}

/// One access to a file and how it was answered, for programs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Access {
    /// Absolute path.
    pub file: String,
    /// What was written, exactly; `None` where nothing was.
    pub value: Option<String>,
    /// The errno; `None` where there was none.
    pub errno: Option<i32>,
    /// What was read back; `None` where it was not.
    pub read_back: Option<String>,
}

impl Access {
    /// Symbolic name of the errno; empty without one.
    pub fn errno_name(&self) -> String {
        self.errno.map(errno_name).unwrap_or_default()
    }
}

impl From<&KernelError> for Access {
    fn from(error: &KernelError) -> Self {
        Access { file: error.file.clone(), value: error.value.clone(), errno: error.errno, read_back: None }
    }
}

/// A condition before it has a time: what was found, and why.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// Type.
    pub kind: ConditionType,
    /// Whether it holds.
    pub holds: Holds,
    /// Documented cause, CamelCase, for programs.
    pub reason: &'static str,
    /// One sentence for people.
    pub message: String,
    /// The access that it is about.
    pub access: Option<Access>,
}

impl Finding {
    /// A state that holds.
    pub fn holds(kind: ConditionType, reason: &'static str, message: impl Into<String>) -> Self {
        Finding { kind, holds: Holds::True, reason, message: message.into(), access: None }
    }

    /// The same with the access that it is about.
    #[must_use]
    pub fn with_access(mut self, access: Access) -> Self {
        self.access = Some(access);
        self
    }
}

/// A finding with the time since when it is so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// What was found.
    pub finding: Finding,
    /// The intent's generation that was looked at; 0 for the node's.
    pub observed_generation: i64,
    /// When it last became true, false or unknown, by this node's clock.
    pub last_transition: SystemTime,
}

/// Gives findings their times: a type that had the same state before keeps its time.
pub fn timed(findings: Vec<Finding>, generation: i64, before: &[Condition], now: SystemTime) -> Vec<Condition> {
    findings
        .into_iter()
        .map(|finding| {
            let last_transition = before
                .iter()
                .find(|old| old.finding.kind == finding.kind && old.finding.holds == finding.holds)
                .map_or(now, |old| old.last_transition);
            Condition { finding, observed_generation: generation, last_transition }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_condition_keeps_its_time_until_its_state_changes() {
        let (first, later) = (SystemTime::UNIX_EPOCH, SystemTime::UNIX_EPOCH + Duration::from_secs(9));
        let found = Finding::holds(ConditionType::NoDevice, "NotFound", "a");
        let old = timed(vec![found.clone()], 1, &[], first);
        let same = timed(vec![Finding { message: "b".to_owned(), ..found.clone() }], 2, &old, later);
        assert_eq!((same[0].last_transition, same[0].observed_generation), (first, 2));
        let other = timed(vec![Finding { holds: Holds::False, ..found }], 2, &old, later);
        assert_eq!(other[0].last_transition, later);
    }
}
