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
            Err(status) if first => return Err(status.into()),
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

/// One row a setting; one row with the reason for an intent that has none on a node.
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

fn row(intent: &str, node: &str, stale: bool, setting: &v1::SettingStatus) -> Vec<String> {
    let key = setting.key();
    let (achieved, error, why) = match &setting.achieved {
        Some(achieved) => {
            let error = match text::finite(setting.intended.as_ref()) {
                Some(limit) => {
                    // Rounded first, and + 0.0: no "-0.0 %" beside a "+0.0 %" that says the same.
                    let percent = (achieved.per_second / limit as f64 - 1.0) * 100.0;
                    format!("{:+.1} %", (percent * 10.0).round() / 10.0 + 0.0)
                }
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
