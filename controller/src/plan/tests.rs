use proptest::prelude::*;

use super::*;
use crate::model::{IntentRecord, IntentSpec, NodeTerm, Ratio, Selector, WallTime, WorkloadTerm};

/// An intent over nodes of these names, with one limit; created at the revision that its name's bytes add up to.
pub(crate) fn intent(id: &str, priority: i32, nodes: &[&str]) -> Intent {
    let time = WallTime { seconds: 0, nanos: 0 };
    let limit = RateLimit::PerSecond(std::num::NonZeroU64::new(1 << 20).unwrap());
    let spec = IntentSpec {
        nodes: Selector {
            any_of: vec![NodeTerm::Match {
                names: nodes.iter().map(|&name| name.to_owned()).collect(),
                labels: Labels::new(),
            }],
            exclude: vec![],
        },
        workloads: Selector {
            any_of: vec![WorkloadTerm { cgroup_path: "/a".into(), ..WorkloadTerm::default() }],
            exclude: vec![],
        },
        devices: Some(Selector { any_of: vec![crate::model::DeviceTerm::All], exclude: vec![] }),
        controls: Controls { limits: Some(Limits { rbps: Some(limit), ..Limits::default() }), ..Controls::default() },
        scope: Scope::Pod,
        priority,
        mode: Mode::Enforce,
        allow_system: false,
        description: String::new(),
    };
    let revision = id.bytes().map(u64::from).sum();
    let record = IntentRecord {
        name: format!("projects/default/intents/{id}").parse().unwrap(),
        uid: format!("uid-{id}"),
        generation: 1,
        labels: Labels::new(),
        spec,
        earlier_nodes: crate::model::Earlier::default(),
        create_time: time,
        update_time: time,
        delete_time: None,
        trace: None,
    };
    Intent { record, create_revision: revision, mod_revision: revision }
}

fn node(name: &str, features: &[&str]) -> NodeView {
    NodeView {
        name: name.parse().unwrap(),
        labels: Labels::new(),
        features: features.iter().map(|&feature| feature.to_owned()).collect(),
    }
}

fn ids(plan: &Plan) -> Vec<(&str, u32)> {
    plan.rules.iter().map(|rule| (rule.intent.intent.as_str(), rule.rank)).collect()
}

#[test]
fn ranked_by_priority_and_equal_ones_share_a_rank() {
    let intents = [intent("a", 5, &["n*"]), intent("b", -1, &["n1"]), intent("c", 5, &["n1"]), intent("d", 9, &["n2"])];
    let plan = plan(&intents, &node("n1", &features::BUILT));
    assert_eq!(ids(&plan), [("a", 0), ("c", 0), ("b", 1)]);
}

#[test]
fn what_is_being_deleted_is_in_no_plan() {
    let mut doomed = intent("a", 0, &["n1"]);
    doomed.record.delete_time = Some(WallTime { seconds: 1, nanos: 0 });
    assert_eq!(plan([&doomed], &node("n1", &features::BUILT)), Plan::default());
}

#[test]
fn what_an_agent_does_not_know_is_not_sent_and_said() {
    let plain = intent("a", 0, &["n1"]);
    let old = plan([&plain], &node("n1", &[]));
    assert!(old.rules.is_empty());
    assert!(old.withheld[0].whole);
    assert_eq!(old.withheld[0].condition().kind, "UnsupportedByAgent");

    let mut total = intent("b", 0, &["n1"]);
    total.record.spec.scope = Scope::Node;
    let without_scope = plan([&total], &node("n1", &[features::LIMITS]));
    assert!(without_scope.rules.is_empty(), "under another scope the numbers would mean something else");
    assert_eq!(without_scope.withheld[0].fields, ["spec.scope"]);
    assert_eq!(plan([&total], &node("n1", &features::BUILT)).rules.len(), 1);
}

#[test]
fn what_is_not_built_is_left_out_and_the_rest_applies() {
    let mut mixed = intent("a", 0, &["n1"]);
    let limits = mixed.record.spec.controls.limits.unwrap();
    mixed.record.spec.controls.limits =
        Some(limits.with(LimitKey::Wbps, Some(RateLimit::PercentOfCapacity(Ratio(10.0)))));
    mixed.record.spec.controls.readahead =
        Some(crate::model::Readahead { mode: crate::model::ReadaheadMode::Auto, kib: 0, tune_running: false });
    let plan = plan([&mixed], &node("n1", &features::BUILT));
    assert_eq!(plan.rules[0].controls, Controls { limits: Some(limits), ..Controls::default() });
    assert_eq!(plan.withheld[0].fields, ["spec.controls.limits.wbps.percent_of_capacity", "spec.controls.readahead"]);
    assert!(!plan.withheld[0].whole);
    assert_eq!(plan.withheld[0].condition().kind, "NotImplemented");
}

#[test]
fn a_difference_leads_from_one_plan_to_the_other() {
    let here = node("n1", &features::BUILT);
    let before = plan(&[intent("a", 0, &["n1"]), intent("b", 0, &["n1"])], &here);
    let mut changed = intent("b", 0, &["n1"]);
    changed.record.generation = 2;
    let after = plan(&[changed, intent("c", 0, &["n1"])], &here);
    let delta = diff(&before, &after);
    assert_eq!(delta.apply.iter().map(|rule| rule.uid.as_str()).collect::<Vec<_>>(), ["uid-b", "uid-c"]);
    assert_eq!(delta.delete, ["uid-a"]);
    assert_eq!(diff(&after, &after), Delta::default());
}

fn some_intents() -> impl Strategy<Value = Vec<Intent>> {
    let one = (-2..2i32, prop_oneof![Just("n1"), Just("n2"), Just("n*")]);
    proptest::collection::vec(one, 0..8).prop_map(|parts| {
        parts
            .into_iter()
            .enumerate()
            .map(|(i, (priority, nodes))| intent(&format!("i{i}"), priority, &[nodes]))
            .collect()
    })
}

proptest! {
    #[test]
    fn the_order_of_intents_does_not_matter(intents in some_intents(), seed in any::<u64>()) {
        let here = node("n1", &features::BUILT);
        let mut shuffled = intents.clone();
        fastrand::Rng::with_seed(seed).shuffle(&mut shuffled);
        prop_assert_eq!(plan(&shuffled, &here), plan(&intents, &here));
    }

    #[test]
    fn an_intent_for_other_nodes_changes_nothing(intents in some_intents(), at in any::<prop::sample::Index>()) {
        let here = node("n1", &features::BUILT);
        let with = plan(&intents, &here);
        let mut more = intents.clone();
        more.insert(at.index(intents.len() + 1), intent("unrelated", 1, &["n2"]));
        prop_assert_eq!(plan(&more, &here), with);
    }

    #[test]
    fn ranks_follow_priorities(intents in some_intents()) {
        let plan = plan(&intents, &node("n1", &features::BUILT));
        for a in &plan.rules {
            for b in &plan.rules {
                prop_assert_eq!(a.rank.cmp(&b.rank), b.priority.cmp(&a.priority));
            }
        }
        prop_assert!(plan.rules.first().is_none_or(|rule| rule.rank == 0));
    }

    #[test]
    fn applying_a_difference_gives_the_other_plan(before in some_intents(), after in some_intents()) {
        let here = node("n1", &features::BUILT);
        let (before, after) = (plan(&before, &here), plan(&after, &here));
        let delta = diff(&before, &after);
        let mut rules: BTreeMap<String, Rule> = before.rules.into_iter().map(|rule| (rule.uid.clone(), rule)).collect();
        for uid in &delta.delete {
            prop_assert!(rules.remove(uid).is_some());
        }
        rules.extend(delta.apply.into_iter().map(|rule| (rule.uid.clone(), rule)));
        let expected: BTreeMap<String, Rule> = after.rules.into_iter().map(|rule| (rule.uid.clone(), rule)).collect();
        prop_assert_eq!(rules, expected);
    }
}
