//! The intent: what is stored of it, and what its spec must satisfy as a whole.

use serde::{Deserialize, Serialize};
use weir_common::{telemetry::TraceContext, units::LimitKey};

use super::{
    Controls, DeviceSelector, Earlier, FieldPath, IntentName, Labels, NodeSelector, RateLimit, Violations, WallTime,
    WorkloadSelector,
};

/// Longest description, bytes.
pub const MAX_DESCRIPTION_BYTES: usize = 1024;

/// Whether the kernel is to be changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Write and keep.
    #[default]
    Enforce,
    /// Report only.
    Observe,
}

/// What one limit covers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Each pod.
    #[default]
    Pod,
    /// Each container.
    Container,
    /// All matched workloads of a node together.
    Node,
}

/// The wish itself; always valid.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct IntentSpec {
    /// Nodes.
    pub nodes: NodeSelector,
    /// Workloads.
    pub workloads: WorkloadSelector,
    /// Devices; `None` only where a CPU latency limit is the only control.
    pub devices: Option<DeviceSelector>,
    /// At least one control.
    pub controls: Controls,
    /// What one limit covers.
    pub scope: Scope,
    /// -1000 to 1000; higher wins.
    pub priority: i32,
    /// Whether the kernel is to be changed.
    pub mode: Mode,
    /// Permits system slices.
    pub allow_system: bool,
    /// For people.
    pub description: String,
}

/// Parts of a spec as they were given. Where `given` is set and the part is `None`, the part was invalid and has its
/// violations already.
#[derive(Clone, Debug, Default)]
pub struct SpecParts {
    /// Nodes.
    pub nodes: Option<NodeSelector>,
    /// Whether nodes were given at all.
    pub nodes_given: bool,
    /// Workloads.
    pub workloads: Option<WorkloadSelector>,
    /// Whether workloads were given at all.
    pub workloads_given: bool,
    /// Devices.
    pub devices: Option<DeviceSelector>,
    /// Whether devices were given at all.
    pub devices_given: bool,
    /// Controls.
    pub controls: Option<Controls>,
    /// Whether controls were given at all.
    pub controls_given: bool,
    /// Whether the only control that was given is a CPU latency limit.
    pub cpu_latency_alone: bool,
    /// Scope.
    pub scope: Option<Scope>,
    /// Priority.
    pub priority: i32,
    /// Mode.
    pub mode: Option<Mode>,
    /// Permits system slices.
    pub allow_system: bool,
    /// Description.
    pub description: String,
}

impl IntentSpec {
    /// A valid spec, or violations of what holds between its parts.
    pub fn new(at: &FieldPath, parts: SpecParts, out: &mut Violations) -> Option<Self> {
        let required = [
            ("nodes", parts.nodes_given),
            ("workloads", parts.workloads_given),
            ("devices", parts.devices_given || parts.cpu_latency_alone),
            ("controls", parts.controls_given),
        ];
        for (name, given) in required {
            if !given {
                out.add(&at.field(name), "is required");
            }
        }
        out.check_range(&at.field("priority"), parts.priority, -1000, 1000);
        if parts.description.len() > MAX_DESCRIPTION_BYTES {
            out.add(
                &at.field("description"),
                format!("{} bytes are more than {MAX_DESCRIPTION_BYTES}", parts.description.len()),
            );
        }
        if !out.is_empty() {
            return None;
        }
        Some(IntentSpec {
            nodes: parts.nodes?,
            workloads: parts.workloads?,
            devices: parts.devices,
            controls: parts.controls?,
            scope: parts.scope?,
            priority: parts.priority,
            mode: parts.mode?,
            allow_system: parts.allow_system,
            description: parts.description,
        })
    }

    /// Which of its fields are stored but not acted on.
    pub fn not_implemented(&self) -> NotImplemented {
        let Controls { limits, weight, latency_target, cpu_latency, readahead, accuracy } = &self.controls;
        let mut controls: Vec<String> = LimitKey::ALL
            .into_iter()
            .filter(|&key| matches!(limits.and_then(|l| l.get(key)), Some(RateLimit::PercentOfCapacity(_))))
            .map(|key| format!("spec.controls.limits.{key}.percent_of_capacity"))
            .collect();
        let given = [
            ("weight", weight.is_some()),
            ("latency_target", latency_target.is_some()),
            ("cpu_latency", cpu_latency.is_some()),
            ("readahead", readahead.is_some()),
            ("accuracy", accuracy.is_some()),
        ];
        controls.extend(given.into_iter().filter(|&(_, given)| given).map(|(name, _)| format!("spec.controls.{name}")));

        let mut selectors = Vec::new();
        for (list, terms) in [("any_of", &self.workloads.any_of), ("exclude", &self.workloads.exclude)] {
            for (i, term) in terms.iter().enumerate() {
                let fields = term.not_built();
                selectors.extend(fields.into_iter().map(|field| format!("spec.workloads.{list}[{i}].{field}")));
            }
        }
        if let Some(devices) = &self.devices {
            for (list, terms) in [("any_of", &devices.any_of), ("exclude", &devices.exclude)] {
                for (i, term) in terms.iter().enumerate() {
                    let fields = term.not_built();
                    selectors.extend(fields.into_iter().map(|field| format!("spec.devices.{list}[{i}].{field}")));
                }
            }
        }
        NotImplemented { controls, selectors }
    }
}

/// Fields of a spec that are stored but not acted on yet, as paths in proto form.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NotImplemented {
    /// Controls.
    pub controls: Vec<String>,
    /// Fields of selectors; a term with one of them matches nothing.
    pub selectors: Vec<String>,
}

/// Checks an intent's own labels: at most 64, keys 1 to 63 characters, values up to 255.
pub fn check_labels(at: &FieldPath, labels: &Labels, out: &mut Violations) {
    if labels.len() > 64 {
        out.add(at, format!("{} labels are more than 64", labels.len()));
    }
    for (key, value) in labels {
        if !(1..=63).contains(&key.chars().count()) || key.chars().any(char::is_control) {
            out.add(&at.key(key), "a key has 1 to 63 characters, none of them a control character");
        }
        if value.chars().count() > 255 || value.chars().any(char::is_control) {
            out.add(&at.key(key), "a value has up to 255 characters, none of them a control character");
        }
    }
}

/// What is stored of an intent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct IntentRecord {
    /// Name.
    pub name: IntentName,
    /// Never reused.
    pub uid: String,
    /// Counts changes of the spec, from 1.
    pub generation: u64,
    /// For people and filters.
    pub labels: Labels,
    /// The wish.
    pub spec: IntentSpec,
    /// Node selectors that the intent had before: nodes out of contact may still follow one of them.
    #[serde(default, skip_serializing_if = "Earlier::is_empty")]
    pub earlier_nodes: Earlier<NodeSelector>,
    /// Wall clock at creation.
    pub create_time: WallTime,
    /// Wall clock of the last change.
    pub update_time: WallTime,
    /// Set once deletion was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delete_time: Option<WallTime>,
    /// Where the last change stands in its trace, so that what follows from it belongs to the same one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<TraceContext>,
}

impl IntentRecord {
    /// Whether deletion was asked for: the intent is in no plan any more.
    pub fn is_deleting(&self) -> bool {
        self.delete_time.is_some()
    }

    /// Whether a node with these labels may have been given the intent at any time.
    pub fn may_have_matched(&self, node: &str, labels: &Labels) -> bool {
        self.spec.nodes.matches(node, labels) || self.earlier_nodes.any(|nodes| nodes.matches(node, labels))
    }
}

/// An intent as the store has it.
#[derive(Clone, Debug, PartialEq)]
pub struct Intent {
    /// What is stored.
    pub record: IntentRecord,
    /// Revision at which it was created: the lower is the older.
    pub create_revision: u64,
    /// Revision of its last change.
    pub mod_revision: u64,
}
