//! Rules of plans, from the model to the wire.

use weir_proto::v1;

use crate::plan::Rule;

use super::{controls_to_wire, devices_to_wire, mode_to_wire, scope_to_wire, to_i64, workloads_to_wire};

pub(crate) fn rule_to_wire(rule: &Rule) -> v1::Rule {
    let Rule {
        intent,
        uid,
        generation,
        rank,
        priority,
        create_revision,
        workloads,
        devices,
        controls,
        scope,
        mode,
        allow_system,
    } = rule;
    v1::Rule {
        intent: intent.to_string(),
        uid: uid.clone(),
        generation: to_i64(*generation),
        rank: i32::try_from(*rank).unwrap_or(i32::MAX),
        priority: *priority,
        create_revision: to_i64(*create_revision),
        workloads: Some(workloads_to_wire(workloads)),
        devices: devices.as_ref().map(devices_to_wire),
        controls: Some(controls_to_wire(controls)),
        scope: scope_to_wire(*scope),
        mode: mode_to_wire(*mode),
        allow_system: *allow_system,
    }
}
