//! get: lists.

use weir_proto::v1;

use crate::{args::Output, client::Client, failure::Failure, names, print, text};

const INTENT_HEAD: [&str; 11] =
    ["INTENT", "MODE", "STATE", "GENERATION", "MATCHED", "APPLIED", "FAILED", "IDLE", "PAUSED", "PENDING", "STALE"];

/// All intents of a project.
///
/// # Errors
/// The controller's.
pub async fn intents(client: &mut Client, project: &str, output: Output) -> Result<(), Failure> {
    let intents = client.all_intents(project).await?;
    if print::list("intents", &intents, output)? {
        return Ok(());
    }
    if intents.is_empty() {
        return print::line(&format!("no intents in project {project}"));
    }
    let rows = intents.iter().map(|intent| row(intent, project)).collect();
    print::line(&print::table(&INTENT_HEAD, rows))
}

fn row(intent: &v1::Intent, project: &str) -> Vec<String> {
    let status = intent.status.clone().unwrap_or_default();
    vec![
        names::short(&intent.name, project).to_owned(),
        match intent.spec.as_ref().map_or(v1::Mode::Unspecified, v1::IntentSpec::mode) {
            v1::Mode::Unspecified | v1::Mode::Enforce => "enforce".to_owned(),
            v1::Mode::Observe => "observe".to_owned(),
        },
        text::word(status.state().as_str_name(), "INTENT_STATE_"),
        intent.generation.to_string(),
        status.nodes_matched.to_string(),
        status.nodes_applied.to_string(),
        status.nodes_failed.to_string(),
        status.nodes_no_match.to_string(),
        status.nodes_suspended.to_string(),
        status.nodes_pending.to_string(),
        status.nodes_stale.to_string(),
    ]
}

/// One intent: its row, and the three numbers on every node.
///
/// # Errors
/// The controller's.
pub async fn intent(client: &mut Client, name: &str, project: &str, output: Output) -> Result<(), Failure> {
    let intent = client.intent(&names::intent(name, project)).await?;
    if print::structured(&intent, output)? {
        return Ok(());
    }
    print::line(&print::table(&INTENT_HEAD, vec![row(&intent, project)]))?;
    for condition in intent.status.iter().flat_map(|status| &status.conditions) {
        print::line(&format!("  {}", text::condition(condition)))?;
    }
    let statuses = client.statuses(&intent.name, "").await?;
    if statuses.iter().any(|status| !status.settings.is_empty()) {
        print::line("")?;
        print::line(&super::watch::table(&statuses, project))?;
    }
    Ok(())
}

fn node_row(node: &v1::Node) -> Vec<String> {
    let facts = node.facts.clone().unwrap_or_default();
    let cgroup = match facts.cgroup_version() {
        v1::CgroupVersion::Unspecified => "-",
        v1::CgroupVersion::V1 => "v1",
        v1::CgroupVersion::V2 => "v2",
    };
    let dash = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
    let known = |count: String| if super::nodes::is_unheard(node) { "-".to_owned() } else { count };
    vec![
        names::short(&node.name, "").to_owned(),
        text::word(node.phase().as_str_name(), "NODE_PHASE_"),
        text::word(node.directive().as_str_name(), "DIRECTIVE_"),
        known(node.settings_held.to_string()),
        known(facts.devices.len().to_string()),
        cgroup.to_owned(),
        dash(&facts.kernel_release),
        dash(&node.agent_version),
        text::age(node.last_contact_age),
    ]
}

const NODE_HEAD: [&str; 9] =
    ["NODE", "PHASE", "DIRECTIVE", "SETTINGS", "DEVICES", "CGROUP", "KERNEL", "AGENT", "LAST CONTACT"];

/// What programs get: the nodes, and what the fleet as a whole is told.
#[derive(serde::Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeList<'a> {
    nodes: &'a [v1::Node],
    fleet_directive: &'static str,
}

/// All nodes.
///
/// # Errors
/// The controller's.
pub async fn nodes(client: &mut Client, output: Output) -> Result<(), Failure> {
    let (nodes, fleet_directive) = client.all_nodes().await?;
    let list = NodeList { nodes: &nodes, fleet_directive: fleet_directive.as_str_name() };
    if print::structured(&list, output)? {
        return Ok(());
    }
    if !matches!(fleet_directive, v1::Directive::Unspecified | v1::Directive::Active) {
        let word = text::word(fleet_directive.as_str_name(), "DIRECTIVE_");
        print::line(&format!("the whole fleet is {word} (undo: weirctl resume --all)"))?;
    }
    if nodes.is_empty() {
        return print::line("no nodes yet: no agent has connected");
    }
    print::line(&print::table(&NODE_HEAD, nodes.iter().map(node_row).collect()))
}

/// One node.
///
/// # Errors
/// The controller's.
pub async fn node(client: &mut Client, name: &str, output: Output) -> Result<(), Failure> {
    let node = client.fleet.get_node(v1::GetNodeRequest { name: names::node(name) }).await?.into_inner();
    if print::structured(&node, output)? {
        return Ok(());
    }
    print::line(&print::table(&NODE_HEAD, vec![node_row(&node)]))
}

/// The block devices of a node.
///
/// # Errors
/// The controller's.
pub async fn devices(client: &mut Client, node: &str, output: Output) -> Result<(), Failure> {
    let request = v1::ListDevicesRequest { parent: names::node(node) };
    let list = client.fleet.list_devices(request).await?.into_inner();
    if print::list("devices", &list.devices, output)? {
        return Ok(());
    }
    let dash = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
    let rows = list.devices.iter().map(|device| {
        vec![
            device.kernel_name.clone(),
            text::device(device.id.as_ref()),
            text::word(device.kind().as_str_name(), "DEVICE_KIND_"),
            text::size(device.size_bytes),
            dash(&device.model),
            dash(&device.serial),
            dash(&device.scheduler),
            device.read_ahead_kib.map_or_else(|| "-".to_owned(), |kib| format!("{kib} KiB")),
            dash(&device.below.join(",")),
            dash(&device.mount_paths.join(",")),
        ]
    });
    let head = ["DEVICE", "NUMBER", "KIND", "SIZE", "MODEL", "SERIAL", "SCHEDULER", "READAHEAD", "BELOW", "MOUNTED AT"];
    print::line(&print::table(&head, rows.collect()))
}

/// The cgroups of a node.
///
/// # Errors
/// The controller's.
pub async fn workloads(
    client: &mut Client,
    node: &str,
    cgroup_path: String,
    project: &str,
    output: Output,
) -> Result<(), Failure> {
    let request = v1::ListWorkloadsRequest { parent: names::node(node), cgroup_path };
    let list = client.fleet.list_workloads(request).await?.into_inner();
    if print::list("workloads", &list.workloads, output)? {
        return Ok(());
    }
    let rows = list.workloads.iter().map(|workload| {
        let intents: Vec<&str> = workload.intents.iter().map(|name| names::short(name, project)).collect();
        vec![workload.cgroup_path.clone(), workload.processes.to_string(), intents.join(", ")]
    });
    print::line(&print::table(&["CGROUP", "PROCESSES", "INTENTS"], rows.collect()))
}
