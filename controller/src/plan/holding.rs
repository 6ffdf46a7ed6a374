//! PURE: who may still hold settings of an intent. Errs on the side of holding: an intent that is listed too long is a
//! nuisance, one that is gone while its limits stay is a lie.

use std::collections::BTreeSet;

use crate::model::{Intent, Labels, NodeName, NodeRecord};

/// What a node can hold at most, as far as this process has seen it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holding {
    /// Revision of the store that the node's latest plan reflects.
    pub reflected: u64,
    /// Uids of intents: of the plan it acknowledged, of one that is on its way, and those it says it holds settings of.
    pub uids: BTreeSet<String>,
}

/// Whether a node may hold settings of a DELETING intent.
///
/// `holding` is what the node is known to hold, if it acknowledged a plan since this controller started; it counts once
/// it reflects the deletion. Else the selectors decide, present and earlier ones, over the node's present and earlier
/// labels. `record` is absent for a node that has just connected for the first time.
pub fn may_hold(
    intent: &Intent,
    node: &NodeName,
    record: Option<&NodeRecord>,
    session_labels: Option<&Labels>,
    holding: Option<&Holding>,
) -> bool {
    if let Some(holding) = holding.filter(|holding| holding.reflected >= intent.mod_revision) {
        return holding.uids.contains(&intent.record.uid);
    }
    let matched = |labels: &Labels| intent.record.may_have_matched(node.as_str(), labels);
    session_labels.is_some_and(matched)
        || record.is_some_and(|record| matched(&record.labels) || record.earlier_labels.any(matched))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{model::Earlier, plan::tests::intent};

    fn record(label: &str) -> NodeRecord {
        let time = crate::model::WallTime { seconds: 0, nanos: 0 };
        NodeRecord {
            uid: "u".into(),
            boot_id: String::new(),
            lost_ledger: None,
            ahead: None,
            labels: [("zone".to_owned(), label.to_owned())].into(),
            earlier_labels: Earlier::default(),
            first_seen: time,
        }
    }

    #[test]
    fn out_of_contact_the_selectors_decide_earlier_ones_too() {
        let node: NodeName = "n1".parse().unwrap();
        let mut doomed = intent("a", 0, &["n2"]);
        assert!(!may_hold(&doomed, &node, Some(&record("x")), None, None));
        doomed.record.earlier_nodes.remember(intent("a", 0, &["n*"]).record.spec.nodes);
        assert!(may_hold(&doomed, &node, Some(&record("x")), None, None));
    }

    #[test]
    fn earlier_labels_count_too() {
        let node: NodeName = "n1".parse().unwrap();
        let mut doomed = intent("a", 0, &[]);
        doomed.record.spec.nodes.any_of = vec![crate::model::NodeTerm::Match {
            names: vec![],
            labels: [("zone".to_owned(), "old".to_owned())].into(),
        }];
        let mut record = record("new");
        assert!(!may_hold(&doomed, &node, Some(&record), None, None));
        assert!(may_hold(&doomed, &node, Some(&record), Some(&[("zone".to_owned(), "old".to_owned())].into()), None));
        record.earlier_labels.remember([("zone".to_owned(), "old".to_owned())].into());
        assert!(may_hold(&doomed, &node, Some(&record), None, None));
    }

    #[test]
    fn what_was_acknowledged_counts_once_it_reflects_the_deletion() {
        let node: NodeName = "n1".parse().unwrap();
        let mut doomed = intent("a", 0, &["n*"]);
        doomed.mod_revision = 10;
        let mut holding = Holding { reflected: 9, uids: BTreeSet::new() };
        assert!(may_hold(&doomed, &node, Some(&record("x")), None, Some(&holding)), "the plan may be from before");
        holding.reflected = 10;
        assert!(!may_hold(&doomed, &node, Some(&record("x")), None, Some(&holding)));
        holding.uids.insert(doomed.record.uid.clone());
        assert!(may_hold(&doomed, &node, Some(&record("x")), None, Some(&holding)));
    }
}
