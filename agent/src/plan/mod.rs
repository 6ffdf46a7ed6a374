//! What a controller wants of this node, in the agent's own types: rules with their selectors and controls, and the plan
//! they make up. PURE values: no wire types, no files, no clock. `link` makes them, `ledger` keeps them, `resolve` reads
//! them.

mod accept;

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use weir_common::fence::Fence;

pub use accept::{Offer, Refusal, accept};

use crate::{
    devices::{DeviceKind, Named},
    kernel::LimitSet,
};

/// Everything that a controller told this node, as of one fence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Identity of the store that it comes from; empty where the controller did not say.
    #[serde(default)]
    pub store_uid: String,
    /// Orders plans; a lower one is refused.
    pub fence: Fence,
    /// What the node is told as a whole.
    pub directive: Directive,
    /// Rules in the order of their uids.
    pub rules: Vec<Rule>,
}

impl Plan {
    /// The names of devices that its rules have, for the device snapshot.
    pub fn named_devices(&self) -> Named {
        let each = |field: fn(&DeviceTerm) -> &Option<String>| {
            let named: BTreeSet<&String> = self.device_terms().filter_map(|term| field(term).as_ref()).collect();
            named.into_iter().cloned().collect()
        };
        Named {
            paths: each(|term| &term.path),
            mounts: each(|term| &term.mount_path),
            files: each(|term| &term.file_path),
        }
    }

    fn device_terms(&self) -> impl Iterator<Item = &DeviceTerm> {
        self.rules.iter().flat_map(|rule| rule.devices.any_of.iter().chain(&rule.devices.exclude))
    }
}

/// What the node is told as a whole; durable until undone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Directive {
    /// Enforce the plan.
    #[default]
    Active,
    /// Change nothing: what is written stays written.
    Paused,
    /// Put everything back, and stay so.
    Released,
}

/// An intent as far as this node is concerned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// Identity of the intent.
    pub uid: String,
    /// Name of the intent, `projects/{project}/intents/{intent}`.
    pub intent: String,
    /// Generation of its spec, from 1.
    pub generation: i64,
    /// Place by priority: the lower wins, equal priorities share it.
    pub rank: i32,
    /// Its priority, for reports.
    pub priority: i32,
    /// The store's revision at its creation: the lower is the older.
    pub create_revision: i64,
    /// Which cgroups.
    pub workloads: WorkloadSelector,
    /// Which devices.
    pub devices: DeviceSelector,
    /// Limits with absolute values, or `unlimited`; a key that is absent is not managed.
    pub limits: LimitSet,
    /// Controls that the rule asks for and that this agent does not build; paths as in the contract.
    pub not_built: Vec<String>,
    /// What one limit covers.
    pub scope: Scope,
    /// Whether the kernel is to be changed.
    pub mode: Mode,
    /// Permits system slices and the agent's own cgroup.
    pub allow_system: bool,
    /// Parts of the rule that this agent does not know, one sentence each; such a rule is not enforced at all, since
    /// half a rule may be worse than none.
    pub unsupported: Vec<String>,
}

/// What one limit covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Scope {
    /// Each pod's cgroup; for workloads outside pods each matched cgroup.
    Pod,
    /// Each container's cgroup; for workloads outside pods each matched cgroup.
    Container,
    /// All matched cgroups together.
    Node,
}

/// Whether the kernel is to be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    /// Write the settings and keep them.
    Enforce,
    /// Resolve and report; write nothing.
    Observe,
}

/// Chooses cgroups: any term of `any_of`, none of `exclude`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkloadSelector {
    /// Terms, ORed.
    pub any_of: Vec<WorkloadTerm>,
    /// Takes away.
    pub exclude: Vec<WorkloadTerm>,
}

/// All given fields must match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkloadTerm {
    /// Glob over the path below the hierarchy's root.
    pub cgroup_path: Option<String>,
    /// Glob over the systemd unit whose own cgroup it is.
    pub systemd_unit: Option<String>,
    /// Has fields that this agent does not build: it matches nothing.
    pub not_built: bool,
}

/// Chooses devices: any term of `any_of`, none of `exclude`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceSelector {
    /// Terms, ORed.
    pub any_of: Vec<DeviceTerm>,
    /// Takes away.
    pub exclude: Vec<DeviceTerm>,
}

/// All given fields must match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceTerm {
    /// Every device on which limits take effect.
    pub all: bool,
    /// One of these kinds; empty means any.
    pub kinds: Vec<DeviceKind>,
    /// Glob over the model.
    pub model: Option<String>,
    /// Glob over the serial number.
    pub serial: Option<String>,
    /// Name below /dev/disk/by-id.
    pub by_id: Option<String>,
    /// Path of a device node.
    pub path: Option<String>,
    /// Mount point.
    pub mount_path: Option<String>,
    /// Path of a file or a directory.
    #[serde(default)]
    pub file_path: Option<String>,
    /// Has fields that this agent does not build: it matches nothing.
    pub not_built: bool,
}
