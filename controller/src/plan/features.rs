//! What agents and this controller can do, as both say it in their Hello.

use crate::model::{DeviceTerm, IntentSpec};

/// Absolute throttle limits.
pub const LIMITS: &str = "control.limits";
/// Limits in percent of the device's capacity.
pub const LIMITS_PERCENT: &str = "control.limits.percent_of_capacity";
/// Weights.
pub const WEIGHT: &str = "control.weight";
/// Latency targets.
pub const LATENCY_TARGET: &str = "control.latency_target";
/// CPU latency limits.
pub const CPU_LATENCY: &str = "control.cpu_latency";
/// Readahead.
pub const READAHEAD: &str = "control.readahead";
/// Accuracy.
pub const ACCURACY: &str = "control.accuracy";
/// One limit over all matched workloads of a node.
pub const SCOPE_NODE: &str = "scope.node";
/// Choosing the device below a file.
pub const DEVICES_FILE_PATH: &str = "devices.file_path";
/// Explaining settings.
pub const QUERY_EXPLAIN: &str = "query.explain";
/// Listing workloads.
pub const QUERY_WORKLOADS: &str = "query.workloads";

/// What this controller can do; `required_features` of a request may name these.
pub const BUILT: [&str; 5] = [LIMITS, SCOPE_NODE, DEVICES_FILE_PATH, QUERY_EXPLAIN, QUERY_WORKLOADS];

/// The fields of a spec's selectors that not every agent knows, as paths in proto form, each with the feature that it needs.
pub(super) fn of_selectors(spec: &IntentSpec) -> Vec<(String, &'static str)> {
    let mut needed = Vec::new();
    let lists = spec.devices.iter().flat_map(|devices| [("any_of", &devices.any_of), ("exclude", &devices.exclude)]);
    for (list, terms) in lists {
        for (i, term) in terms.iter().enumerate() {
            if let DeviceTerm::Match(fields) = term
                && !fields.file_path.is_empty()
            {
                needed.push((format!("spec.devices.{list}[{i}].file_path"), DEVICES_FILE_PATH));
            }
        }
    }
    needed
}
