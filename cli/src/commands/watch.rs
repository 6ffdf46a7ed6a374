//! watch: the three numbers, live.

use std::io::{IsTerminal as _, Write as _};

use tokio::time::Instant;
use weir_proto::v1;

use crate::{
    args::{Output, Watch},
    client::Client,
    failure::Failure,
    names, print, text,
};

/// Shows the settings again and again until the time is up or Ctrl-C.
///
/// # Errors
/// The controller's. One that goes away in between is waited for.
pub async fn run(client: &mut Client, options: Watch, project: &str, output: Output) -> Result<(), Failure> {
    let intent = options.intent.as_deref().map(|name| names::intent(name, project)).unwrap_or_default();
    let node = options.node.as_deref().map(names::node).unwrap_or_default();
    let terminal = std::io::stdout().is_terminal() && output == Output::Table;
    let started = Instant::now();
    let mut drawn = 0;
    let mut first = true;
    loop {
        let seconds = started.elapsed().as_secs();
        let shown = match client.statuses(&intent, &node).await {
            Ok(statuses) => {
                let list = v1::ListIntentNodeStatusesResponse { statuses, ..Default::default() };
                if print::structured(&list, output)? { None } else { Some(table(&list.statuses, project)) }
            }
            Err(status) if first => return Err(status.into()),
            Err(status) => Some(format!("the controller does not answer: {}", status.message())),
        };
        first = false;
        if let Some(shown) = shown {
            if terminal && drawn > 0 {
                // Back to where the last drawing began, and clear below.
                print!("\x1b[{drawn}A\x1b[J");
                std::io::stdout().flush()?;
            }
            let shown = format!("{seconds:>4} s\n{shown}");
            drawn = shown.lines().count();
            print::line(&shown)?;
        }
        let end = options.length.map(|length| started + length);
        let next = Instant::now() + options.interval;
        if end.is_some_and(|end| end <= Instant::now()) {
            return Ok(());
        }
        tokio::select! {
            () = tokio::time::sleep_until(end.map_or(next, |end| end.min(next))) => {}
            _ = tokio::signal::ctrl_c() => return Ok(()),
        }
    }
}

/// One row a setting.
pub fn table(statuses: &[v1::IntentNodeStatus], project: &str) -> String {
    let mut rows = Vec::new();
    for status in statuses {
        let intent = names::short(&status.intent, project);
        let node = names::short(&status.node, "");
        for setting in &status.settings {
            rows.push(row(intent, node, status.stale, setting));
        }
        if status.settings.is_empty() {
            let state = text::word(status.state().as_str_name(), "RULE_STATE_");
            let why = status.conditions.iter().find(|c| c.r#type != "Applied").or(status.conditions.first());
            let why = why.map(|c| format!("{}: {}", c.r#type, c.message)).unwrap_or(state);
            let dash = || "-".to_owned();
            rows.push(vec![
                intent.to_owned(),
                node.to_owned(),
                dash(),
                dash(),
                dash(),
                dash(),
                dash(),
                dash(),
                dash(),
                why,
            ]);
        }
    }
    if rows.is_empty() {
        return "no intent applies to any node yet".to_owned();
    }
    let head = ["INTENT", "NODE", "CGROUP", "DEVICE", "KEY", "INTENDED", "EFFECTIVE", "ACHIEVED", "ERROR", "WHY"];
    print::table(&head, rows)
}

fn row(intent: &str, node: &str, stale: bool, setting: &v1::SettingStatus) -> Vec<String> {
    let key = setting.key();
    let (achieved, error, why) = match &setting.achieved {
        Some(achieved) => {
            let error = match text::finite(setting.intended.as_ref()) {
                Some(limit) => format!("{:+.1} %", (achieved.per_second / limit as f64 - 1.0) * 100.0),
                None => "-".to_owned(),
            };
            let unlimited = text::finite(setting.effective.as_ref()).is_none();
            let why = match achieved.reason() {
                v1::ShortfallReason::Demand if unlimited => "no limit",
                reason => text::reason(reason),
            };
            (text::rate(achieved.per_second, key), error, why.to_owned())
        }
        None => ("-".to_owned(), "-".to_owned(), setting.achieved_unknown.clone()),
    };
    let why = if stale { format!("out of contact; last known: {why}") } else { why };
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
