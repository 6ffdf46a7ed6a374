//! kill -9 of the agent and of the controller, again and again, under intents that change: nothing acknowledged is lost, and
//! no limit is ever left without an owner.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    reason = "a test fails by panicking, and speaks to a person"
)]

use std::{
    process::Command,
    time::{Duration, Instant},
};

use weir_proto::v1;
use weir_tests::{fleet, process::binary, require, rig::Rig};

const CGROUPS: usize = 4;

/// Kills of each daemon; fewer where the machine is emulated.
fn cycles() -> u32 {
    std::env::var("WEIR_CRASH_CYCLES").ok().and_then(|text| text.parse().ok()).unwrap_or(50)
}

/// What the store acknowledged, by intent: the limit.
type Acknowledged = std::collections::BTreeMap<String, i64>;

/// Writes a random change (create or update with a random limit, or delete) until `until`; notes what was acknowledged.
async fn change(rig: &mut Rig, acknowledged: &mut Acknowledged, doubtful: &mut Vec<String>, until: Instant) {
    while Instant::now() < until {
        let child = format!("c{}", fastrand::usize(..CGROUPS));
        let id = format!("crash-{child}");
        let limit = fastrand::i64(1..100) << 20;
        let outcome = if fastrand::u8(..4) == 0 && acknowledged.contains_key(&id) {
            let request = v1::DeleteIntentRequest { name: fleet::full(&id), ..Default::default() };
            rig.clients.intents.delete_intent(request).await.map(|_| None)
        } else {
            let intent = rig.read_limit(&id, &child, Some(limit));
            let request = v1::UpdateIntentRequest { intent: Some(intent), allow_missing: true, ..Default::default() };
            rig.clients.intents.update_intent(request).await.map(|_| Some(limit))
        };
        match outcome {
            Ok(Some(limit)) => drop(acknowledged.insert(id.clone(), limit)),
            Ok(None) => drop(acknowledged.remove(&id)),
            // A refusal changes nothing; a broken connection leaves it open whether the change was stored.
            Err(status) if matches!(status.code(), tonic::Code::FailedPrecondition | tonic::Code::AlreadyExists) => {
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            }
            Err(_) => {
                doubtful.push(id);
                return;
            }
        }
        doubtful.retain(|other| *other != id);
        tokio::time::sleep(Duration::from_millis(fastrand::u64(1..30))).await;
    }
}

/// What the store holds of intents that are in force.
async fn stored(rig: &mut Rig) -> Acknowledged {
    let list = v1::ListIntentsRequest { page_size: 1000, ..Default::default() };
    let intents = rig.clients.intents.list_intents(list).await.expect("the controller answers").into_inner().intents;
    intents
        .into_iter()
        .filter(|intent| intent.delete_time.is_none())
        .map(|intent| {
            let id = intent.name.rsplit('/').next().unwrap().to_owned();
            let limits = intent.spec.unwrap().controls.unwrap().limits.unwrap();
            let Some(v1::byte_rate_limit::Limit::BytesPerSecond(limit)) = limits.rbps.unwrap().limit else {
                panic!("{id} lost its limit")
            };
            (id, limit)
        })
        .collect()
}

/// Checks the store against what was acknowledged; what was open is taken from the store.
async fn settle(rig: &mut Rig, acknowledged: &mut Acknowledged, doubtful: &mut Vec<String>) {
    let stored = stored(rig).await;
    for id in doubtful.drain(..) {
        acknowledged.remove(&id);
        if let Some(limit) = stored.get(&id) {
            acknowledged.insert(id, *limit);
        }
    }
    assert_eq!(&stored, acknowledged, "what was acknowledged is what is stored");
}

/// Waits until the kernel holds exactly what is stored.
async fn converged(rig: &Rig, acknowledged: &Acknowledged) {
    for i in 0..CGROUPS {
        let child = format!("c{i}");
        let value = acknowledged.get(&format!("crash-{child}")).map(|limit| u64::try_from(*limit).unwrap());
        rig.kernel_holds(&child, value).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_9_of_the_agent_leaves_no_limit_without_an_owner() {
    if !require::met("kill_9_of_the_agent_leaves_no_limit_without_an_owner", &require::throttle()) {
        return;
    }
    let mut rig = Rig::new("crash-agent").await;
    for i in 0..CGROUPS {
        rig.tree.child(&format!("c{i}")).unwrap();
    }
    let (mut acknowledged, mut doubtful) = (Acknowledged::new(), vec![]);
    for cycle in 0..cycles() {
        let until = Instant::now() + Duration::from_millis(fastrand::u64(20..400));
        change(&mut rig, &mut acknowledged, &mut doubtful, until).await;
        rig.agent.as_mut().unwrap().kill();
        if cycle % 5 == 4 {
            // Whatever the moment was, the ledger knows all that is ours: release puts everything back.
            let released = Command::new(binary("weir-agent"))
                .arg("--state-dir")
                .arg(rig.dir().join("agent"))
                .arg("release")
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&released.stdout).into_owned();
            assert!(released.status.success(), "{said}{}", String::from_utf8_lossy(&released.stderr));
            for i in 0..CGROUPS {
                assert_eq!(rig.kernel_rbps(&format!("c{i}")), None, "cycle {cycle}: without an owner\n{said}");
            }
        }
        rig.start_agent();
        converged(&rig, &acknowledged).await;
    }
    settle(&mut rig, &mut acknowledged, &mut doubtful).await;
    eprintln!("agent killed {} times, {} limits in force at the end", cycles(), acknowledged.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_9_of_the_controller_loses_nothing_acknowledged() {
    if !require::met("kill_9_of_the_controller_loses_nothing_acknowledged", &require::throttle()) {
        return;
    }
    let mut rig = Rig::new("crash-controller").await;
    for i in 0..CGROUPS {
        rig.tree.child(&format!("c{i}")).unwrap();
    }
    let (mut acknowledged, mut doubtful) = (Acknowledged::new(), vec![]);
    for _ in 0..cycles() {
        let mut controller = rig.controller.take().unwrap();
        let killer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(fastrand::u64(5..300)));
            controller.kill();
        });
        let until = Instant::now() + Duration::from_secs(5);
        change(&mut rig, &mut acknowledged, &mut doubtful, until).await;
        killer.join().unwrap();
        rig.start_controller();
        settle(&mut rig, &mut acknowledged, &mut doubtful).await;
        converged(&rig, &acknowledged).await;
    }
    eprintln!("controller killed {} times, {} limits in force at the end", cycles(), acknowledged.len());
}
