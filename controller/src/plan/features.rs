//! What agents and this controller can do, as both say it in their Hello.

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
/// Explaining settings.
pub const QUERY_EXPLAIN: &str = "query.explain";
/// Listing workloads.
pub const QUERY_WORKLOADS: &str = "query.workloads";

/// What this controller can do; `required_features` of a request may name these.
pub const BUILT: [&str; 4] = [LIMITS, SCOPE_NODE, QUERY_EXPLAIN, QUERY_WORKLOADS];
