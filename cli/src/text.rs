//! Values as people read them.

use std::time::Duration;

use weir_proto::v1;

/// A capacity.
pub fn size(bytes: i64) -> String {
    rate(bytes as f64, v1::LimitKey::Rbps).replace("/s", "")
}

/// `10 MiB/s`, `1.5 kB/s`, `2000 IOPS`.
pub fn rate(value: f64, key: v1::LimitKey) -> String {
    if matches!(key, v1::LimitKey::Riops | v1::LimitKey::Wiops) {
        return format!("{value:.0} IOPS");
    }
    let units = [("TiB/s", 40), ("GiB/s", 30), ("MiB/s", 20), ("KiB/s", 10)];
    for (name, power) in units {
        let scaled = value / f64::from(power).exp2();
        if scaled >= 1.0 {
            let digits = usize::from((scaled - scaled.round()).abs() > 0.005) * 2;
            return format!("{scaled:.digits$} {name}");
        }
    }
    format!("{value:.0} B/s")
}

/// A limit.
pub fn limit(value: Option<&v1::LimitValue>, key: v1::LimitKey) -> String {
    match value.and_then(|value| value.value.as_ref()) {
        Some(v1::limit_value::Value::Finite(value)) => rate(*value as f64, key),
        Some(v1::limit_value::Value::Unlimited(_)) => "unlimited".to_owned(),
        None => "-".to_owned(),
    }
}

/// The number of a finite limit.
pub fn finite(value: Option<&v1::LimitValue>) -> Option<u64> {
    match value?.value.as_ref()? {
        v1::limit_value::Value::Finite(value) => Some(*value),
        v1::limit_value::Value::Unlimited(_) => None,
    }
}

/// The key as io.max has it.
pub fn key(key: v1::LimitKey) -> &'static str {
    match key {
        v1::LimitKey::Unspecified => "?",
        v1::LimitKey::Rbps => "rbps",
        v1::LimitKey::Wbps => "wbps",
        v1::LimitKey::Riops => "riops",
        v1::LimitKey::Wiops => "wiops",
    }
}

/// Why a workload got less.
pub fn reason(reason: v1::ShortfallReason) -> &'static str {
    match reason {
        v1::ShortfallReason::Unspecified | v1::ShortfallReason::Unknown => "unknown",
        v1::ShortfallReason::OwnLimit => "at its limit",
        v1::ShortfallReason::Demand => "asks for less",
        v1::ShortfallReason::Parent => "stricter limit elsewhere",
        v1::ShortfallReason::Saturated => "device gives no more",
        v1::ShortfallReason::NotStarted => "no I/O yet",
    }
}

/// The directive by which a node does not enforce: `paused`, `released`; `None` where it does.
pub fn suspending(directive: v1::Directive) -> Option<&'static str> {
    match directive {
        v1::Directive::Unspecified | v1::Directive::Active => None,
        v1::Directive::Paused => Some("paused"),
        v1::Directive::Released => Some("released"),
    }
}

/// An enum value without its prefix, in small letters.
pub fn word(name: &str, prefix: &str) -> String {
    name.strip_prefix(prefix).unwrap_or(name).to_ascii_lowercase()
}

/// `reported 3s ago`, or that nothing was.
pub fn reported(since: Option<weir_proto::Duration>) -> String {
    match since {
        Some(_) => format!("reported {} ago", age(since)),
        None => "not reported yet".to_owned(),
    }
}

/// `3s`, `2m`, `5h`, `4d`; `-` where there is none.
pub fn age(age: Option<weir_proto::Duration>) -> String {
    let Some(age) = age.and_then(|age| Duration::try_from(age).ok()) else { return "-".to_owned() };
    match age.as_secs() {
        seconds @ 0..120 => format!("{seconds}s"),
        seconds @ 120..7200 => format!("{}m", seconds / 60),
        seconds @ 7200..172_800 => format!("{}h", seconds / 3600),
        seconds => format!("{}d", seconds / 86_400),
    }
}

/// `MAJ:MIN`.
pub fn device(id: Option<&v1::DeviceId>) -> String {
    id.map_or_else(|| "-".to_owned(), |id| format!("{}:{}", id.major, id.minor))
}

/// One line of a condition.
pub fn condition(condition: &v1::Condition) -> String {
    let holds = match condition.status() {
        v1::ConditionStatus::True => "",
        v1::ConditionStatus::False => "not ",
        v1::ConditionStatus::Unspecified | v1::ConditionStatus::Unknown => "unknown whether ",
    };
    let mut text = format!("{holds}{} ({}): {}", condition.r#type, condition.reason, condition.message);
    match &condition.detail {
        Some(v1::condition::Detail::KernelWrite(write)) if !write.file.is_empty() => {
            text = format!("{text}\n    file {}", write.file);
            for (name, value) in
                [("wrote", &write.value), ("errno", &write.errno_name), ("read back", &write.read_back)]
            {
                if !value.is_empty() {
                    text = format!("{text}, {name} {value}");
                }
            }
        }
        Some(v1::condition::Detail::Fields(list)) => text = format!("{text}\n    fields {}", list.fields.join(", ")),
        Some(v1::condition::Detail::KernelWrite(_)) | None => {}
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates() {
        for (value, text) in [
            (10_485_760.0, "10 MiB/s"),
            (1_572_864.0, "1.50 MiB/s"),
            (1000.0, "1000 B/s"),
            (1024.0, "1 KiB/s"),
            (0.0, "0 B/s"),
            (1.5e12, "1.36 TiB/s"),
        ] {
            assert_eq!(rate(value, v1::LimitKey::Rbps), text);
        }
        assert_eq!(rate(2000.4, v1::LimitKey::Wiops), "2000 IOPS");
    }
}
