//! Real limits on a real disk with real readers: cgroup v1 on the machine itself, v2 in the guest. One at a time.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    reason = "a test fails by panicking, and speaks to a person"
)]

use std::{process::Command, time::Duration};

use weir_proto::v1::{self, LimitKey, RuleState, ShortfallReason, limit_value::Value};
use weir_tests::{
    cgroup, fleet,
    load::Load,
    process::{Daemon, binary},
    require,
    rig::{Rig, SOON},
};

const MIB: u64 = 1024 * 1024;

macro_rules! needs_throttle {
    ($name:literal) => {
        if !require::met($name, &require::throttle()) {
            return;
        }
    };
}

fn finite(value: Option<v1::LimitValue>) -> Option<u64> {
    match value?.value? {
        Value::Finite(value) => Some(value),
        Value::Unlimited(_) => None,
    }
}

fn condition<'a>(status: &'a v1::IntentNodeStatus, kind: &str) -> Option<&'a v1::Condition> {
    status.conditions.iter().find(|c| c.r#type == kind && c.status() == v1::ConditionStatus::True)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_holds_and_the_three_numbers_agree() {
    needs_throttle!("a_limit_holds_and_the_three_numbers_agree");
    let mut rig = Rig::new("hold").await;
    let file = rig.disk.file("data", 64).unwrap();
    let other_file = rig.disk.file("other", 32).unwrap();
    let limited = rig.tree.child("limited").unwrap();
    let free = rig.tree.child("free").unwrap();
    let limit = 4 * MIB;

    rig.create(rig.read_limit("hold", "limited", Some(i64::try_from(limit).unwrap()))).await;
    let status = rig.reported("hold", "applied", |s| s.state() == RuleState::Applied).await;
    assert_eq!(rig.kernel_rbps("limited"), Some(limit), "{status:#?}");
    assert_eq!(rig.kernel_rbps("free"), None);

    let neighbour = Load { seconds: 4.0, ..Load::direct_read(0.0) }.start(&free, &other_file);
    let reader = Load::direct_read(16.0).start(&limited, &file);
    tokio::time::sleep(Duration::from_secs(14)).await;
    let status = rig.clients.status("hold").await.unwrap().expect("a report");
    let own = reader.report();
    let neighbour = neighbour.report();

    let [setting] = &status.settings[..] else { panic!("one setting: {status:#?}") };
    assert_eq!(setting.key(), LimitKey::Rbps);
    assert_eq!(finite(setting.intended), Some(limit));
    assert_eq!(finite(setting.effective), Some(limit));
    let achieved = setting.achieved.clone().expect("achieved is known");
    let window = Duration::try_from(achieved.window.unwrap()).unwrap();
    assert!((9.0..=11.5).contains(&window.as_secs_f64()), "{window:?}");
    let error = achieved.per_second / limit as f64 - 1.0;
    assert!(error.abs() < 0.05, "achieved {} of {limit}", achieved.per_second);
    assert_eq!(achieved.reason(), ShortfallReason::OwnLimit, "{achieved:#?}");
    // The reader's own clock and count agree: 16 s with one slice's burst at the start.
    let truth = own.bytes_per_second() / achieved.per_second - 1.0;
    assert!(truth.abs() < 0.05, "the reader saw {}, Weir {}", own.bytes_per_second(), achieved.per_second);
    assert!(neighbour.bytes_per_second() > 2.0 * limit as f64, "the neighbour got {neighbour:?}");

    rig.delete("hold").await;
    assert_eq!(rig.kernel_rbps("limited"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_asks_for_less_is_said_to() {
    needs_throttle!("a_reader_that_asks_for_less_is_said_to");
    let mut rig = Rig::new("demand").await;
    let file = rig.disk.file("data", 32).unwrap();
    let group = rig.tree.child("modest").unwrap();
    rig.create(rig.read_limit("modest", "modest", Some(8 << 20))).await;
    rig.kernel_holds("modest", Some(8 * MIB)).await;
    let reader = Load { pace: MIB, ..Load::direct_read(13.0) }.start(&group, &file);
    tokio::time::sleep(Duration::from_secs(12)).await;
    let status = rig.clients.status("modest").await.unwrap().expect("a report");
    let own = reader.report();
    let achieved = status.settings[0].achieved.clone().expect("achieved is known");
    assert_eq!(achieved.reason(), ShortfallReason::Demand, "{achieved:#?}");
    let truth = achieved.per_second / own.bytes_per_second() - 1.0;
    assert!(truth.abs() < 0.1, "the reader saw {}, Weir {}", own.bytes_per_second(), achieved.per_second);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_there_before_comes_back_and_what_is_foreign_stays() {
    needs_throttle!("what_was_there_before_comes_back_and_what_is_foreign_stays");
    let mut rig = Rig::new("baseline").await;
    let dir = rig.tree.child("a").unwrap();
    let untouched = rig.tree.child("b").unwrap();
    cgroup::foreign_rbps(rig.hierarchy(), &dir, &rig.disk.number, Some(20 * MIB));
    cgroup::foreign_rbps(rig.hierarchy(), &untouched, &rig.disk.number, Some(30 * MIB));

    rig.create(rig.read_limit("one", "a", Some(5 << 20))).await;
    rig.kernel_holds("a", Some(5 * MIB)).await;
    // Another value, a restart by kill -9 in between: the baseline is still the first one.
    rig.agent.as_mut().unwrap().kill();
    rig.start_agent();
    let mut stricter = rig.read_limit("one", "a", Some(3 << 20));
    stricter.etag = String::new();
    let update = v1::UpdateIntentRequest { intent: Some(stricter), ..Default::default() };
    rig.clients.intents.update_intent(update).await.unwrap();
    rig.kernel_holds("a", Some(3 * MIB)).await;

    rig.delete("one").await;
    assert_eq!(rig.kernel_rbps("a"), Some(20 * MIB));
    assert_eq!(rig.kernel_rbps("b"), Some(30 * MIB));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_change_is_put_right_and_counted() {
    needs_throttle!("a_foreign_change_is_put_right_and_counted");
    let mut rig = Rig::new("drift").await;
    let dir = rig.tree.child("a").unwrap();
    rig.create(rig.read_limit("drift", "a", Some(5 << 20))).await;
    rig.kernel_holds("a", Some(5 * MIB)).await;
    rig.reported("drift", "applied", |s| s.state() == RuleState::Applied).await;
    for value in [None, Some(50 * MIB)] {
        cgroup::foreign_rbps(rig.hierarchy(), &dir, &rig.disk.number, value);
        rig.kernel_holds("a", Some(5 * MIB)).await;
    }
    let explained = fleet::eventually("two repairs are counted", SOON, || async {
        let request = v1::ExplainRequest { node: "nodes/n1".into(), ..Default::default() };
        let answer = rig.clients.clone().fleet.explain(request).await.unwrap().into_inner();
        answer.settings.into_iter().find(|s| s.drift_repairs == 2)
    })
    .await;
    assert!(explained.claims[0].won, "{explained:#?}");
    assert_eq!(explained.claims[0].intent, fleet::full("drift"));
    assert!(matches!(explained.baseline.unwrap().value, Some(Value::Unlimited(true))));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_write_is_a_condition_and_others_go_on() {
    needs_throttle!("a_refused_write_is_a_condition_and_others_go_on");
    let mut rig = Rig::new("refused").await;
    let good = rig.tree.child("good").unwrap();
    let bad = rig.tree.child("bad").unwrap();
    assert!(good.is_dir());
    rig.agent.take().unwrap().stop();
    // For this agent alone one cgroup's directory is read-only.
    let mut command = Command::new("unshare");
    let script = r#"d=$1; shift; mount --bind "$d" "$d" && mount -o remount,ro,bind "$d" && exec "$@""#;
    command.args(["-m", "sh", "-c", script, "sh"]).arg(&bad).arg(binary("weir-agent"));
    command.args(fleet::agent_args(&rig.dir(), &rig.address, "n1"));
    let log = rig.dir().join("agent.log");
    rig.agent = Some(Daemon::start_command(command, fleet::AGENT_READY, &log).unwrap());

    rig.create(rig.read_limit("both", "*", Some(5 << 20))).await;
    rig.kernel_holds("good", Some(5 * MIB)).await;
    let status = rig.reported("both", "failed", |s| s.state() == RuleState::Failed).await;
    assert_eq!(rig.kernel_rbps("bad"), None);
    let failed = condition(&status, "WriteFailed").expect("a condition");
    let Some(v1::condition::Detail::KernelWrite(write)) = &failed.detail else { panic!("{failed:#?}") };
    assert_eq!(write.errno_name, "EROFS", "{write:#?}");
    assert!(write.file.starts_with(bad.to_str().unwrap()), "{write:#?}");
    assert!(write.value.contains("5242880"), "{write:#?}");
    // The good one is reported as it is.
    let good = status.settings.iter().find(|s| s.cgroup_path.ends_with("/good")).expect("a setting");
    assert_eq!(finite(good.effective), Some(5 * MIB));

    // What stood in the way is gone: the next attempt succeeds by itself.
    rig.agent.as_mut().unwrap().kill();
    rig.start_agent();
    rig.kernel_holds("bad", Some(5 * MIB)).await;
    rig.reported("both", "applied", |s| s.state() == RuleState::Applied).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_stay_without_a_controller_until_they_are_released() {
    needs_throttle!("limits_stay_without_a_controller_until_they_are_released");
    let mut rig = Rig::new("static").await;
    let dir = rig.tree.child("a").unwrap();
    cgroup::foreign_rbps(rig.hierarchy(), &dir, &rig.disk.number, Some(40 * MIB));
    rig.create(rig.read_limit("static", "a", Some(5 << 20))).await;
    rig.kernel_holds("a", Some(5 * MIB)).await;
    rig.reported("static", "applied", |s| s.state() == RuleState::Applied).await;

    rig.controller.as_mut().unwrap().kill();
    assert!(rig.agent.as_mut().unwrap().stop(), "the agent ends in order");
    assert_eq!(rig.kernel_rbps("a"), Some(5 * MIB), "an end of the agent releases nothing");
    rig.start_agent();
    cgroup::foreign_rbps(rig.hierarchy(), &dir, &rig.disk.number, None);
    rig.kernel_holds("a", Some(5 * MIB)).await;

    let release = |dir: &std::path::Path| {
        Command::new(binary("weir-agent")).arg("release").arg("--state-dir").arg(dir.join("agent")).output().unwrap()
    };
    let refused = release(&rig.dir());
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success());
    assert!(text.contains(&rig.agent.as_ref().unwrap().pid().to_string()), "it names who holds the lock: {text}");

    rig.agent.take().unwrap().stop();
    let wrong = rig.dir().join("wrong");
    let nothing = release(&wrong);
    assert!(!nothing.status.success() && !wrong.exists(), "a release makes no state of its own");
    let released = release(&rig.dir());
    assert!(released.status.success(), "{}", String::from_utf8_lossy(&released.stderr));
    assert_eq!(rig.kernel_rbps("a"), Some(40 * MIB));
}

#[tokio::test(flavor = "multi_thread")]
async fn pause_and_release_hold_until_resumed() {
    needs_throttle!("pause_and_release_hold_until_resumed");
    let mut rig = Rig::new("brake").await;
    let dir = rig.tree.child("a").unwrap();
    rig.create(rig.read_limit("brake", "a", Some(5 << 20))).await;
    rig.kernel_holds("a", Some(5 * MIB)).await;

    let node = "nodes/n1".to_owned();
    rig.clients.fleet.pause_node(v1::PauseNodeRequest { name: node.clone() }).await.unwrap();
    rig.reported("brake", "suspended", |s| s.state() == RuleState::Suspended).await;
    cgroup::foreign_rbps(rig.hierarchy(), &dir, &rig.disk.number, Some(7 * MIB));
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(rig.kernel_rbps("a"), Some(7 * MIB), "paused: nothing is changed");

    rig.clients.fleet.resume_node(v1::ResumeNodeRequest { name: node.clone() }).await.unwrap();
    rig.kernel_holds("a", Some(5 * MIB)).await;
    rig.clients.fleet.release_node(v1::ReleaseNodeRequest { name: node.clone() }).await.unwrap();
    rig.kernel_holds("a", None).await;
    // Durable: neither a restart of the agent nor of the controller brings it back.
    rig.agent.as_mut().unwrap().kill();
    rig.controller.as_mut().unwrap().kill();
    rig.start_controller();
    rig.start_agent();
    rig.reported("brake", "suspended", |s| s.state() == RuleState::Suspended).await;
    assert_eq!(rig.kernel_rbps("a"), None);
    rig.clients.fleet.resume_node(v1::ResumeNodeRequest { name: node }).await.unwrap();
    rig.kernel_holds("a", Some(5 * MIB)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_agent_of_any_name_is_refused_on_one_kernel() {
    needs_throttle!("a_second_agent_of_any_name_is_refused_on_one_kernel");
    let mut rig = Rig::new("sole").await;
    let other = rig.dir().join("other");
    std::fs::create_dir(&other).unwrap();
    let run = |more: &[&str]| {
        let mut command = Command::new(binary("weir-agent"));
        command.args(fleet::agent_args(&other, &rig.address, "n2")).args(more).output().unwrap()
    };
    let refused = run(&[]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("one agent a machine"), "{said}");
    assert!(!other.join("agent").exists(), "it made nothing");
    // The lock goes with the process, however that ends.
    rig.agent.as_mut().unwrap().kill();
    rig.start_agent();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_owned_is_put_back_also_where_the_journal_cannot_be_written() {
    needs_throttle!("what_is_owned_is_put_back_also_where_the_journal_cannot_be_written");
    let mut rig = Rig::new("full").await;
    let dir = rig.tree.child("a").unwrap();
    cgroup::foreign_rbps(rig.hierarchy(), &dir, &rig.disk.number, Some(40 * MIB));
    rig.create(rig.read_limit("full", "a", Some(5 << 20))).await;
    rig.kernel_holds("a", Some(5 * MIB)).await;
    rig.agent.as_mut().unwrap().kill();
    // As on a file system that is full: no file can be written beside the journal.
    let state = rig.dir().join("agent");
    let beside = state.join("journal.new");
    std::fs::create_dir(&beside).unwrap();
    rig.start_agent();
    rig.reported("full", "applied", |s| s.state() == RuleState::Applied).await;
    assert_eq!(rig.kernel_rbps("a"), Some(5 * MIB));
    rig.agent.as_mut().unwrap().kill();
    let release = Command::new(binary("weir-agent")).arg("release").arg("--state-dir").arg(&state).output().unwrap();
    let said = String::from_utf8_lossy(&release.stdout).into_owned();
    assert!(release.status.success() && said.contains("is back"), "{said}{}", String::from_utf8_lossy(&release.stderr));
    assert_eq!(rig.kernel_rbps("a"), Some(40 * MIB));
    std::fs::remove_dir(&beside).unwrap();
    rig.start_agent();
    rig.kernel_holds("a", Some(5 * MIB)).await;
}
