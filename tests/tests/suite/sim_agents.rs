//! A fleet of modelled nodes against real controllers: what a restart, a vanished controller and an aged session cost.

use std::{collections::BTreeMap, path::Path, time::Duration};

use rustix::process::Signal;
use weir_proto::v1;
use weir_tests::{
    fleet::{self, Clients, Scratch, eventually},
    sim::Simulation,
};

const SOON: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_converges_and_a_restart_writes_nothing() {
    const AGENTS: usize = 50;
    let scratch = Scratch::new();
    let dir = scratch.path();
    let (mut controller, address) = fleet::controller(&dir, "127.0.0.1:0").unwrap();
    let mut clients = Clients::connect(&address).await.unwrap();
    let simulation = Simulation::start(&dir.join("sim"), &[&address], AGENTS).unwrap();
    simulation.until("all connect", SOON, |total| total.connected == AGENTS).await.unwrap();

    let intent = fleet::read_limit("a", "/sim/w1", Path::new("/dev/nvme0n1"), Some(1 << 20));
    clients.intents.create_intent(fleet::create(intent)).await.unwrap();
    let name = fleet::full("a");
    eventually("APPLIED on every node", SOON, || async {
        let request = v1::GetIntentRequest { name: name.clone() };
        let status = clients.clone().intents.get_intent(request).await.ok()?.into_inner().status?;
        (status.nodes_applied == 50 && status.nodes_matched == 50).then_some(())
    })
    .await;
    let expected = BTreeMap::from([("/sim/w1 259:0".to_owned(), BTreeMap::from([("rbps".to_owned(), 1 << 20)]))]);
    let nodes = simulation.nodes().unwrap();
    assert_eq!(nodes.len(), AGENTS);
    for node in &nodes {
        assert_eq!((&node.limits, node.writes), (&expected, 1), "{}", node.node);
    }

    let before = simulation.until("all is counted", SOON, |total| total.writes == AGENTS as u64).await.unwrap();
    assert!(controller.stop(), "it ends in order");
    let (_controller, _) = fleet::controller(&dir, &address).unwrap();
    let again = before.sessions + AGENTS as u64;
    let all_back = |total: &weir_tests::sim::Total| total.connected == AGENTS && total.sessions >= again;
    simulation.until("all reconnect", SOON, all_back).await.unwrap();
    // Time enough for every node to look at itself again.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    let after = simulation.total().unwrap();
    assert_eq!((after.writes, after.settings_held), (before.writes, AGENTS), "nothing changed, so nothing is written");

    let mut clients = Clients::connect(&address).await.unwrap();
    clients.intents.delete_intent(v1::DeleteIntentRequest { name, ..Default::default() }).await.unwrap();
    simulation.until("none is held", SOON, |total| total.settings_held == 0).await.unwrap();
    assert!(simulation.nodes().unwrap().iter().all(|node| node.limits.is_empty() && node.writes == 2));
    let end = simulation.total().unwrap();
    assert_eq!((end.needless_writes, end.lower_applied), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn aged_sessions_begin_again_and_cost_nothing() {
    const AGENTS: usize = 5;
    let scratch = Scratch::new();
    let (_controller, address) =
        fleet::controller_with(&scratch.path(), "127.0.0.1:0", &["--max-session-age-s", "1"]).unwrap();
    let mut clients = Clients::connect(&address).await.unwrap();
    let intent = fleet::read_limit("a", "/sim/w*", Path::new("/dev/nvme0n1"), Some(1 << 20));
    clients.intents.create_intent(fleet::create(intent)).await.unwrap();
    let simulation = Simulation::start(&scratch.path().join("sim"), &[&address], AGENTS).unwrap();
    // Sent elsewhere, an agent comes back at once, whatever the back-off: five sessions take little more than five ages.
    let total =
        simulation.until("five sessions each", SOON, |total| total.sessions >= 5 * AGENTS as u64).await.unwrap();
    assert_eq!((total.settings_held, total.writes), (3 * AGENTS, 3 * AGENTS as u64));
    assert_eq!((total.needless_writes, total.lower_refused, total.lower_applied, total.stale), (0, 0, 0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vanished_controller_is_left_for_another() {
    const AGENTS: usize = 4;
    let scratch = Scratch::new();
    let (one, two) = (scratch.path().join("one"), scratch.path().join("two"));
    std::fs::create_dir_all(&one).unwrap();
    std::fs::create_dir_all(&two).unwrap();
    let (first, first_address) = fleet::controller(&one, "127.0.0.1:0").unwrap();
    let (_second, second_address) = fleet::controller(&two, "127.0.0.1:0").unwrap();
    let addresses = [first_address.as_str(), second_address.as_str()];
    let simulation = Simulation::start(&scratch.path().join("sim"), &addresses, AGENTS).unwrap();
    simulation.until("all connect", SOON, |total| total.connected == AGENTS).await.unwrap();

    // It takes connections still, and says nothing.
    first.signal(Signal::STOP);
    let other = format!("http://{second_address}");
    let began = std::time::Instant::now();
    loop {
        let nodes = simulation.nodes().unwrap();
        if nodes.iter().all(|node| node.controller.as_deref() == Some(&other)) {
            break;
        }
        assert!(began.elapsed() < SOON, "after {SOON:?}: {nodes:#?}");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    first.signal(Signal::CONT);
    assert_eq!(simulation.total().unwrap().stale, 0, "they were not out of contact for 30 s");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_both_ends_ask_to_stay_alive_ends_no_session() {
    let scratch = Scratch::new();
    let (_controller, address) = fleet::controller(&scratch.path(), "127.0.0.1:0").unwrap();
    let simulation = Simulation::start(&scratch.path().join("sim"), &[&address], 3).unwrap();
    simulation.until("all connect", SOON, |total| total.connected == 3).await.unwrap();
    // Three times over the keepalive of each end and the controller's own question after the session.
    tokio::time::sleep(Duration::from_secs(33)).await;
    let total = simulation.total().unwrap();
    assert_eq!((total.connected, total.sessions, total.stale), (3, 3, 0), "nobody had to connect again");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_another_controller_a_node_says_within_30_s_that_it_is_stale() {
    let scratch = Scratch::new();
    let (controller, address) = fleet::controller(&scratch.path(), "127.0.0.1:0").unwrap();
    let simulation = Simulation::start(&scratch.path().join("sim"), &[&address], 2).unwrap();
    simulation.until("all connect", SOON, |total| total.connected == 2).await.unwrap();
    controller.signal(Signal::STOP);
    // Totals come each second.
    simulation.until("both are stale", Duration::from_secs(32), |total| total.stale == 2).await.unwrap();
    controller.signal(Signal::CONT);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_agent_of_the_same_name_is_told_so_once() {
    let scratch = Scratch::new();
    let (_controller, address) = fleet::controller(&scratch.path(), "127.0.0.1:0").unwrap();
    let first = Simulation::start(&scratch.path().join("first"), &[&address], 1).unwrap();
    first.until("it connects", SOON, |total| total.connected == 1).await.unwrap();
    let second = Simulation::start(&scratch.path().join("second"), &[&address], 1).unwrap();
    let said = || std::fs::read_to_string(&second.daemon.log).unwrap().matches("has this node's name").count();
    eventually("it is said", SOON, || async { (said() > 0).then_some(()) }).await;
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(said(), 1, "in the slow phase, and in one line");
    assert_eq!(second.total().unwrap().sessions, 0);
}
