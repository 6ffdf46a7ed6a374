//! explain: every setting of a node with all that decided it.

use weir_proto::v1;

use crate::{
    args::{Explain, Output},
    client::Client,
    failure::Failure,
    names, print, text,
};

/// Asks the node's agent.
///
/// # Errors
/// The controller's, UNAVAILABLE where the agent is out of contact.
pub async fn run(client: &mut Client, options: Explain, project: &str, output: Output) -> Result<(), Failure> {
    let request = v1::ExplainRequest {
        node: names::node(&options.node),
        intent: options.intent.map(|name| names::intent(&name, project)).unwrap_or_default(),
        cgroup_path: options.cgroup,
    };
    let answer = client.fleet.explain(request).await?.into_inner();
    if print::structured(&answer, output)? {
        return Ok(());
    }
    let node = client.fleet.get_node(v1::GetNodeRequest { name: names::node(&options.node) }).await?.into_inner();
    if let Some(told) = text::suspending(node.directive()) {
        print::line(&format!("{} is {told}: nothing is enforced there until it is resumed", options.node))?;
    }
    if answer.settings.is_empty() && answer.without_setting.is_empty() {
        return print::line("no intent wants anything there");
    }
    for setting in &answer.settings {
        print::line(&explained(setting, project))?;
    }
    for rule in &answer.without_setting {
        let state = text::word(rule.state().as_str_name(), "RULE_STATE_");
        print::line(&format!("{} ends in no setting here ({state})", names::short(&rule.intent, project)))?;
        for condition in &rule.conditions {
            print::line(&format!("  {}", text::condition(condition)))?;
        }
    }
    Ok(())
}

fn explained(setting: &v1::ExplainedSetting, project: &str) -> String {
    let status = setting.status.clone().unwrap_or_default();
    let key = status.key();
    let mut lines = vec![format!(
        "{} on {} ({}) in {}",
        text::key(key),
        status.device_name,
        text::device(status.device.as_ref()),
        status.cgroup_path
    )];
    lines.push(format!("  intended   {}", text::limit(status.intended.as_ref(), key)));
    let from = match status.effective_from.as_str() {
        "" => String::new(),
        ancestor => format!("  (the limit of {ancestor})"),
    };
    lines.push(format!("  effective  {}{from}", text::limit(status.effective.as_ref(), key)));
    lines.push(match &status.achieved {
        Some(achieved) => {
            let window =
                achieved.window.and_then(|window| std::time::Duration::try_from(window).ok()).unwrap_or_default();
            let shares: Vec<String> = achieved
                .reasons
                .iter()
                .map(|share| format!("{} {:.0} %", text::reason(share.reason()), share.share * 100.0))
                .collect();
            format!(
                "  achieved   {} over {:.1} s: {}",
                text::rate(achieved.per_second, key),
                window.as_secs_f64(),
                shares.join(", ")
            )
        }
        None => format!("  achieved   unknown: {}", status.achieved_unknown),
    });
    for claim in &setting.claims {
        let mark = if claim.won { "won " } else { "lost" };
        lines.push(format!(
            "  {mark} {} wants {} (priority {}): {}",
            names::short(&claim.intent, project),
            text::limit(claim.value.as_ref(), key),
            claim.priority,
            claim.why
        ));
    }
    if setting.written.is_some() {
        lines.push(format!(
            "  before     {}; written {}; put right {} time(s)",
            text::limit(setting.baseline.as_ref(), key),
            text::limit(setting.written.as_ref(), key),
            setting.drift_repairs
        ));
    }
    lines.push(format!("  file       {}", status.file));
    lines.extend(setting.conditions.iter().map(|condition| format!("  {}", text::condition(condition))));
    lines.join("\n")
}
