//! watch: the three numbers, live.

use std::{io::IsTerminal as _, time::Duration};

use tokio::time::Instant;
use weir_proto::v1;

use crate::{
    args::{Output, Watch},
    client::Client,
    failure::Failure,
    names, print,
    screen::Screen,
    text,
};

/// Shortest time between two looks.
const SHORTEST: Duration = Duration::from_millis(100);

/// Shows the settings again and again until the time is up or Ctrl-C: redrawn in place on a terminal, one below the other
/// elsewhere. Programs get one line of JSON, or one YAML document, a look.
///
/// # Errors
/// The controller's at the first look; one that goes away later is waited for.
pub async fn run(client: &mut Client, options: Watch, project: &str, output: Output) -> Result<(), Failure> {
    let intent = options.intent.as_deref().map(|name| names::intent(name, project)).unwrap_or_default();
    let node = options.node.as_deref().map(names::node).unwrap_or_default();
    let terminal = std::io::stdout().is_terminal() && output == Output::Table;
    let mut screen = terminal.then(Screen::default);
    let mut interrupted = std::pin::pin!(tokio::signal::ctrl_c());
    let started = Instant::now();
    let end = options.length.map(|length| started + length);
    let mut first = true;
    loop {
        let next = Instant::now() + options.interval.max(SHORTEST);
        let answer = tokio::select! {
            _ = &mut interrupted => return Ok(()),
            answer = client.statuses(&intent, &node) => answer,
        };
        let shown = match answer {
            Ok(statuses) if output == Output::Table => table(&statuses, project),
            Ok(statuses) => {
                print::streamed(&v1::ListIntentNodeStatusesResponse { statuses, ..Default::default() }, output)?;
                String::new()
            }
            // An outage passes; a refusal does not.
            Err(status) if first || is_refusal(status.code()) => return Err(status.into()),
            Err(status) => format!("the controller does not answer: {}", status.message()),
        };
        first = false;
        let seconds = started.elapsed().as_secs_f64();
        match &mut screen {
            Some(screen) => screen.draw(&format!("{seconds:.1} s\n{shown}"))?,
            None if output == Output::Table => print::line(&format!("{seconds:.1} s\n{shown}"))?,
            // Standard output belongs to the values alone.
            None if !shown.is_empty() => print::remark(&shown),
            None => {}
        }
        if end.is_some_and(|end| end <= Instant::now()) {
            return Ok(());
        }
        tokio::select! {
            _ = &mut interrupted => return Ok(()),
            () = tokio::time::sleep_until(end.map_or(next, |end| end.min(next))) => {}
        }
    }
}

const HEAD: [&str; 10] =
    ["INTENT", "NODE", "CGROUP", "DEVICE", "KEY", "INTENDED", "EFFECTIVE", "ACHIEVED", "ERROR", "REASON"];

fn is_refusal(code: tonic::Code) -> bool {
    use tonic::Code;
    matches!(
        code,
        Code::PermissionDenied | Code::Unauthenticated | Code::InvalidArgument | Code::NotFound | Code::Unimplemented
    )
}

/// One row a setting; one row with the reason for an intent that has none on a node.
pub fn table(statuses: &[v1::IntentNodeStatus], project: &str) -> String {
    let mut rows = Vec::new();
    for status in statuses {
        let intent = names::short(&status.intent, project);
        let node = names::short(&status.node, "");
        for setting in &status.settings {
            rows.push(row(intent, node, status, setting));
        }
        if status.settings.is_empty() {
            let state = text::word(status.state().as_str_name(), "RULE_STATE_");
            let why = status.conditions.iter().find(|c| c.r#type != "Applied").or(status.conditions.first());
            let why = why.map(|c| format!("{}: {}", c.r#type, c.message)).unwrap_or(state);
            let mut row = vec![intent.to_owned(), node.to_owned()];
            row.resize(HEAD.len() - 1, "-".to_owned());
            row.push(why);
            rows.push(row);
        }
    }
    if rows.is_empty() {
        return "no intent applies to any node yet".to_owned();
    }
    print::table(&HEAD, rows)
}

/// How far achieved lies from intended; `None` where that is no error of the limit: the workload asks for less, something
/// else holds it back, or no limit is in force.
fn error(setting: &v1::SettingStatus, achieved: &v1::Achieved) -> Option<String> {
    let limit = text::finite(setting.intended.as_ref())? as f64;
    text::finite(setting.effective.as_ref())?;
    if achieved.reason() != v1::ShortfallReason::OwnLimit && achieved.per_second <= limit {
        return None;
    }
    // Rounded first, and + 0.0: no "-0.0 %" beside a "+0.0 %" that says the same.
    let percent = (achieved.per_second / limit - 1.0) * 100.0;
    Some(format!("{:+.1} %", (percent * 10.0).round() / 10.0 + 0.0))
}

/// What the node is told that keeps it from enforcing: `paused`, `released`; `None` where it enforces.
fn suspended(status: &v1::IntentNodeStatus) -> Option<String> {
    if status.state() != v1::RuleState::Suspended {
        return None;
    }
    let condition = status.conditions.iter().find(|condition| condition.r#type == "Suspended");
    Some(condition.map_or_else(|| "suspended".to_owned(), |condition| condition.reason.to_ascii_lowercase()))
}

fn row(intent: &str, node: &str, status: &v1::IntentNodeStatus, setting: &v1::SettingStatus) -> Vec<String> {
    let key = setting.key();
    let (achieved, error, why) = match &setting.achieved {
        Some(achieved) => {
            let unlimited = text::finite(setting.effective.as_ref()).is_none();
            let why = match achieved.reason() {
                v1::ShortfallReason::Demand if unlimited => "no limit",
                reason => text::reason(reason),
            };
            let error = error(setting, achieved).unwrap_or_else(|| "-".to_owned());
            (text::rate(achieved.per_second, key), error, why.to_owned())
        }
        None => ("-".to_owned(), "-".to_owned(), setting.achieved_unknown.clone()),
    };
    let why = suspended(status).map_or(why.clone(), |told| format!("{told}; {why}"));
    let why = if status.stale { format!("out of contact; last known: {why}") } else { why };
    vec![
        intent.to_owned(),
        node.to_owned(),
        setting.cgroup_path.clone(),
        setting.device_name.clone(),
        text::key(key).to_owned(),
        text::limit(setting.intended.as_ref(), key),
        text::limit(setting.effective.as_ref(), key),
        achieved,
        error,
        why,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_told_only_where_the_limit_is_at_work() {
        use v1::ShortfallReason::{Demand, NotStarted, OwnLimit, Saturated, Unknown};
        let limit = |value| Some(v1::LimitValue { value: Some(value) });
        let finite = || limit(v1::limit_value::Value::Finite(1000));
        let of = |effective, per_second, reason: v1::ShortfallReason| {
            let setting = v1::SettingStatus { intended: finite(), effective, ..Default::default() };
            error(&setting, &v1::Achieved { per_second, reason: reason.into(), ..Default::default() })
        };
        assert_eq!(of(finite(), 990.0, OwnLimit).as_deref(), Some("-1.0 %"));
        assert_eq!(of(finite(), 999.99, OwnLimit).as_deref(), Some("+0.0 %"));
        assert_eq!(of(finite(), 1500.0, Unknown).as_deref(), Some("+50.0 %"));
        for reason in [Demand, NotStarted, Unknown, Saturated] {
            assert_eq!(of(finite(), 0.0, reason), None, "{reason:?}");
        }
        assert_eq!(of(limit(v1::limit_value::Value::Unlimited(true)), 9000.0, Demand), None);
    }
}
