//! What earlier minor versions wrote and say must go on to work. Their stores, backups, agents' state and contracts are kept
//! in tests/fixtures/vX.Y, one directory for each version, made by tests/fixtures/record when that version was released.

use std::{
    collections::BTreeMap,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use weir_proto::v1;
use weir_tests::{
    fleet::{self, Clients, Scratch, eventually},
    process::{binary, buf},
    require,
    sim::Simulation,
};

const SOON: Duration = Duration::from_secs(30);
/// As `record` named and labelled the nodes.
const NODES: [&str; 4] = ["--node", "sim", "--label", "zone=a"];

/// The directories of all versions that are kept; at least one.
fn versions() -> Vec<PathBuf> {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    let mut versions: Vec<PathBuf> = std::fs::read_dir(fixtures)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir() && path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('v')))
        .collect();
    versions.sort();
    assert!(!versions.is_empty(), "no version is kept in tests/fixtures");
    versions
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// What the controller of that version listed, without the status, by name.
fn listed_then(version: &Path) -> BTreeMap<String, v1::Intent> {
    let text = std::fs::read_to_string(version.join("intents.json")).unwrap();
    let listed: v1::ListIntentsResponse = serde_json::from_str(&text).unwrap();
    by_name(listed.intents)
}

fn by_name(intents: Vec<v1::Intent>) -> BTreeMap<String, v1::Intent> {
    intents.into_iter().map(|intent| (intent.name.clone(), v1::Intent { status: None, ..intent })).collect()
}

async fn listed_now(clients: &Clients) -> BTreeMap<String, v1::Intent> {
    let request = v1::ListIntentsRequest { parent: "projects/default".into(), ..Default::default() };
    by_name(clients.clone().intents.list_intents(request).await.unwrap().into_inner().intents)
}

/// Limits of a modelled node, as `cgroup disk key` to value.
fn limits(node: &weir_tests::sim::Node) -> BTreeMap<String, u64> {
    let keys = |(place, limits): (&String, &BTreeMap<String, u64>)| {
        limits.iter().map(|(key, value)| (format!("{place} {key}"), *value)).collect::<Vec<_>>()
    };
    node.limits.iter().flat_map(keys).collect()
}

/// Of the fixture's intents, with the change that `record` makes; `going` is deleted but on a node that is paused.
fn expected(going: bool) -> BTreeMap<String, u64> {
    let mut expected: BTreeMap<String, u64> = [
        ("/sim/w1 259:0 rbps", 4 << 20),
        ("/sim/w1 259:0 wbps", 4_000_000),
        ("/sim/w1 259:0 riops", 2000),
        ("/sim/w1 259:0 wiops", 1000),
        ("/sim/w1 259:1 rbps", 64 << 20),
        ("/sim/w1 259:1 wbps", 10_000_000),
        ("/sim/w2 259:1 wbps", 10_000_000),
        ("/sim/w3 259:1 wbps", 10_000_000),
    ]
    .map(|(key, value)| (key.to_owned(), value))
    .into();
    if going {
        expected.insert("/sim/w3 259:0 wiops".to_owned(), 700);
    }
    expected
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_and_agents_of_an_earlier_version_go_on() {
    for version in versions() {
        let scratch = Scratch::new();
        let dir = scratch.path();
        std::fs::copy(version.join("store.redb"), dir.join("store.redb")).unwrap();
        copy(&version.join("agents"), &dir.join("sim/state"));
        let (_controller, address) = fleet::controller(&dir, "127.0.0.1:0").unwrap();
        let mut clients = Clients::connect(&address).await.unwrap();
        assert_eq!(listed_now(&clients).await, listed_then(&version), "{}", version.display());
        assert!(listed_now(&clients).await[&fleet::full("going")].delete_time.is_some());

        let simulation = Simulation::with(&NODES, &dir.join("sim"), &[&address], 2).unwrap();
        eventually("the first node holds what is stored", SOON, || async {
            let nodes = simulation.nodes().unwrap();
            nodes.iter().any(|node| node.node == "sim-0001" && limits(node) == expected(false)).then_some(())
        })
        .await;
        // The other one is paused still. It held up a deletion that was asked for then, which may end at any time now: the
        // modelled kernel, and with it what the node held, began anew.
        let paused = v1::GetNodeRequest { name: "nodes/sim-0002".into() };
        let paused = clients.fleet.get_node(paused).await.unwrap().into_inner();
        assert_eq!(paused.directive(), v1::Directive::Paused);
        let resume = v1::ResumeNodeRequest { name: "nodes/sim-0002".into() };
        clients.fleet.resume_node(resume).await.unwrap();
        eventually("the deletion ends and both hold the same", SOON, || async {
            let nodes = simulation.nodes().unwrap();
            let gone = !listed_now(&clients).await.contains_key(&fleet::full("going"));
            (gone && nodes.iter().all(|node| limits(node) == expected(false))).then_some(())
        })
        .await;
        let total = simulation.total().unwrap();
        assert_eq!((total.lower_refused, total.lower_applied, total.needless_writes), (0, 0, 0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_earlier_plan_is_kept_without_a_controller() {
    for version in versions() {
        let scratch = Scratch::new();
        let dir = scratch.path();
        copy(&version.join("agents"), &dir.join("sim/state"));
        // Nobody listens there.
        let simulation = Simulation::with(&NODES, &dir.join("sim"), &["127.0.0.1:1"], 2).unwrap();
        eventually("the plan is in force", SOON, || async {
            let nodes = simulation.nodes().unwrap();
            nodes.iter().any(|node| node.node == "sim-0001" && limits(node) == expected(false)).then_some(())
        })
        .await;
        // A node that is paused writes nothing, and its kernel began with nothing.
        let nodes = simulation.nodes().unwrap();
        let paused = nodes.iter().find(|node| node.node == "sim-0002").unwrap();
        assert_eq!((paused.writes, limits(paused)), (0, BTreeMap::new()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_of_an_earlier_version_can_be_restored() {
    for version in versions() {
        let scratch = Scratch::new();
        // Made by the restore, as it is by a start.
        let dir = scratch.path().join("not-there-yet");
        let mut restore = Command::new(binary("weir-controller"));
        restore.arg("--store").arg(dir.join("store.redb")).args(["store", "restore"]);
        let out = restore.arg(version.join("backup.jsonl")).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        // Its file is the controller's alone.
        let mode = std::fs::metadata(dir.join("store.redb")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let (_controller, address) = fleet::controller(&dir, "127.0.0.1:0").unwrap();
        let clients = Clients::connect(&address).await.unwrap();
        // Revisions begin anew; what was asked for is the same.
        let asked = |intents: BTreeMap<String, v1::Intent>| -> Vec<_> {
            intents.into_values().map(|i| (i.name, i.uid, i.generation, i.labels, i.spec, i.delete_time)).collect()
        };
        assert_eq!(asked(listed_now(&clients).await), asked(listed_then(&version)));
    }
}

#[test]
fn the_contract_breaks_no_earlier_version() {
    let Some(buf) = buf() else {
        require::met("the_contract_breaks_no_earlier_version", &[weir_tests::process::BUF_MISSING.to_owned()]);
        return;
    };
    let proto = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("proto");
    for version in versions() {
        let mut breaking = Command::new(&buf);
        breaking.args(["breaking", "--exclude-imports", "--against"]).arg(version.join("contract.binpb"));
        let out = breaking.current_dir(&proto).output().unwrap();
        let said = [out.stdout, out.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
        assert!(out.status.success(), "against {}: {said}", version.display());
    }
}
