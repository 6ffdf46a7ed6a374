//! Field masks of updates: which paths there are, and how each is taken over. One macro line for each message; a field
//! that a message gains does not compile until it is named here.

use weir_proto::v1;

/// Takes over a path of `new`; whether there is such a path.
type Take<T> = fn(current: &mut T, new: &T, path: &[&str]) -> bool;

/// Fields that are taken over whole (`leaves`), and messages into which a path may go on.
macro_rules! message {
    ($name:ident, $type:ident, leaves { $($leaf:ident),* }, messages { $($field:ident: $take:expr),* }) => {
        fn $name(current: &mut v1::$type, new: &v1::$type, path: &[&str]) -> bool {
            let v1::$type { $($leaf: _,)* $($field: _,)* } = new;
            match path {
                $([stringify!($leaf)] => {
                    current.$leaf = new.$leaf.clone();
                    true
                })*
                $([stringify!($field), rest @ ..] => into(&mut current.$field, new.$field.as_ref(), rest, $take),)*
                _ => false,
            }
        }
    };
}

fn into<T: Default + Clone + PartialEq>(
    current: &mut Option<T>,
    new: Option<&T>,
    rest: &[&str],
    take: Take<T>,
) -> bool {
    if rest.is_empty() {
        *current = new.cloned();
        return true;
    }
    let empty = T::default();
    let mut changed = current.clone().unwrap_or_default();
    if !take(&mut changed, new.unwrap_or(&empty), rest) {
        return false;
    }
    // Clearing the only field of a message clears the message, unless the update says that it is to be there.
    *current = (changed != empty || new.is_some()).then_some(changed);
    true
}

macro_rules! rate_limit {
    ($name:ident, $type:ident, $module:ident, { $($member:ident => $variant:ident),* }) => {
        fn $name(current: &mut v1::$type, new: &v1::$type, path: &[&str]) -> bool {
            use v1::$module::Limit;
            match path {
                $([stringify!($member)] => {
                    match &new.limit {
                        Some(limit @ Limit::$variant(_)) => current.limit = Some(limit.clone()),
                        _ if matches!(current.limit, Some(Limit::$variant(_))) => current.limit = None,
                        _ => {}
                    }
                    true
                })*
                _ => false,
            }
        }
        const _: fn(v1::$module::Limit) = |limit| match limit { $(v1::$module::Limit::$variant(_) => {})* };
    };
}

message!(
    spec,
    IntentSpec,
    leaves { scope, priority, mode, allow_system, description },
    messages { nodes: nodes, workloads: workloads, devices: devices, controls: controls }
);
message!(nodes, NodeSelector, leaves { any_of, exclude }, messages {});
message!(workloads, WorkloadSelector, leaves { any_of, exclude }, messages {});
message!(devices, DeviceSelector, leaves { any_of, exclude }, messages {});
message!(
    controls,
    Controls,
    leaves {},
    messages {
        limits: limits,
        weight: weight,
        latency_target: latency_target,
        cpu_latency: cpu_latency,
        readahead: readahead,
        accuracy: accuracy
    }
);
message!(
    limits,
    Limits,
    leaves {},
    messages { rbps: byte_rate_limit, wbps: byte_rate_limit, riops: operation_rate_limit, wiops: operation_rate_limit }
);
message!(weight, Weight, leaves { weight }, messages {});
message!(latency_target, LatencyTarget, leaves { target_us, percentile }, messages {});
message!(
    cpu_latency,
    CpuLatency,
    leaves { limit_us, idle_timeout_ms, min_hold_ms, cpus, max_active_fraction, allow_polling },
    messages {}
);
message!(readahead, Readahead, leaves { mode, kib, tune_running }, messages {});
message!(accuracy, Accuracy, leaves { max_error_percent, window_ms, max_stall_ms }, messages {});
rate_limit!(byte_rate_limit, ByteRateLimit, byte_rate_limit,
    { bytes_per_second => BytesPerSecond, percent_of_capacity => PercentOfCapacity, unlimited => Unlimited });
rate_limit!(operation_rate_limit, OperationRateLimit, operation_rate_limit,
    { operations_per_second => OperationsPerSecond, percent_of_capacity => PercentOfCapacity, unlimited => Unlimited });

/// Why a path cannot be in a mask.
fn refuse(path: &str) -> String {
    match path.split('.').next() {
        Some("spec") => {
            "is no field of the spec that can be named; elements of lists and maps are replaced with the whole"
        }
        Some("labels") => "labels are replaced whole",
        Some("name" | "etag") => "cannot be changed",
        Some("uid" | "generation" | "create_revision" | "status" | "create_time" | "update_time" | "delete_time") => {
            "is set by the server"
        }
        _ => "is no field of an intent",
    }
    .to_owned()
}

/// Takes over the fields that the mask names, in its order; `*` stands for all that a client can set. An empty mask
/// means `spec` and `labels`.
///
/// Errors are the index of each path that cannot be named, with the reason.
pub(super) fn apply(current: &mut v1::Intent, new: &v1::Intent, paths: &[String]) -> Result<(), Vec<(usize, String)>> {
    if paths.is_empty() {
        current.spec.clone_from(&new.spec);
        current.labels.clone_from(&new.labels);
        return Ok(());
    }
    let mut wrong = Vec::new();
    for (i, path) in paths.iter().enumerate() {
        let parts: Vec<&str> = path.split('.').collect();
        let taken = match parts.as_slice() {
            ["*"] => apply(current, new, &[]).is_ok(),
            ["labels"] => {
                current.labels.clone_from(&new.labels);
                true
            }
            ["spec", rest @ ..] => into(&mut current.spec, new.spec.as_ref(), rest, spec),
            _ => false,
        };
        if !taken {
            wrong.push((i, refuse(path)));
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn intent(json: &str) -> v1::Intent {
        serde_json::from_str(json).unwrap()
    }

    fn masked(current: &str, new: &str, paths: &[&str]) -> Result<v1::Intent, Vec<(usize, String)>> {
        let mut current = intent(current);
        let paths: Vec<String> = paths.iter().map(|&path| path.to_owned()).collect();
        apply(&mut current, &intent(new), &paths).map(|()| current)
    }

    const CURRENT: &str = r#"{"labels": {"a": "1"}, "spec": {"priority": 3, "description": "d",
        "controls": {"limits": {"rbps": {"bytesPerSecond": "100000"}, "wiops": {"unlimited": true}}}}}"#;

    #[test]
    fn only_what_is_named_is_taken_over() {
        let new =
            r#"{"labels": {"b": "2"}, "spec": {"priority": 9, "controls": {"limits": {"rbps": {"unlimited": true}}}}}"#;
        let one = masked(CURRENT, new, &["spec.controls.limits.rbps"]).unwrap();
        assert_eq!(
            one,
            intent(
                r#"{"labels": {"a": "1"}, "spec": {"priority": 3, "description": "d",
                "controls": {"limits": {"rbps": {"unlimited": true}, "wiops": {"unlimited": true}}}}}"#
            )
        );
        let two = masked(CURRENT, new, &["labels", "spec.priority", "spec.description"]).unwrap();
        assert_eq!((two.labels.len(), two.labels["b"].as_str()), (1, "2"));
        let spec = two.spec.unwrap();
        assert_eq!((spec.priority, spec.description.as_str()), (9, ""));
        for whole in [&[][..], &["*"], &["spec", "labels"]] {
            assert_eq!(masked(CURRENT, new, whole).unwrap(), intent(new));
        }
    }

    #[test]
    fn members_of_a_oneof_replace_each_other() {
        let path = "spec.controls.limits.rbps.unlimited";
        let new = r#"{"spec": {"controls": {"limits": {"rbps": {"unlimited": true}}}}}"#;
        let limit = |intent: v1::Intent| intent.spec.unwrap().controls.unwrap().limits.unwrap().rbps;
        assert_eq!(
            limit(masked(CURRENT, new, &[path]).unwrap()).unwrap().limit,
            Some(v1::byte_rate_limit::Limit::Unlimited(true))
        );
        // Naming a member that is not set on either side changes nothing; on this side it is cleared.
        assert_eq!(masked(CURRENT, "{}", &[path]).unwrap(), intent(CURRENT));
        assert_eq!(limit(masked(CURRENT, "{}", &["spec.controls.limits.rbps.bytes_per_second"]).unwrap()), None);
    }

    #[test]
    fn clearing_goes_up_no_further_than_it_must() {
        let cleared = masked(CURRENT, "{}", &["spec.controls.limits.rbps", "spec.controls.limits.wiops"]).unwrap();
        assert_eq!(cleared.spec.unwrap().controls, None);
    }

    #[test]
    fn unknown_paths_are_named_all() {
        let paths = [
            "spec.nope",
            "uid",
            "",
            "labels.a",
            "spec.controls.limits.rbps.operations_per_second",
            "spec.",
            "spec.nodes.any_of.0",
            "spec.priority.x",
            "name",
            "spec.description",
        ];
        let wrong = masked(CURRENT, "{}", &paths).unwrap_err();
        assert_eq!(wrong.iter().map(|(i, _)| *i).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5, 6, 7, 8]);
    }
}
