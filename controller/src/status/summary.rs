//! PURE: an intent's status, summed over nodes.

use crate::model::{NodeName, RuleState};

/// What became of an intent on one node that it matches.
#[derive(Clone, Debug)]
pub struct NodeAnswer {
    /// Whether the node is in contact.
    pub connected: bool,
    /// State for the present generation; `None` where the node has not answered for it.
    pub state: Option<RuleState>,
}

/// An intent's status, summed over nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IntentSummary {
    /// Nodes that it matches.
    pub matched: usize,
    /// Of these: applied.
    pub applied: usize,
    /// Of these: failed.
    pub failed: usize,
    /// Of these: nothing is meant there at present.
    pub no_match: usize,
    /// Of these: paused or released.
    pub suspended: usize,
    /// Of these: no answer for the present generation.
    pub pending: usize,
    /// Of these: out of contact.
    pub stale: usize,
    /// While it is being deleted: nodes that may still hold settings of it.
    pub holding: Vec<NodeName>,
}

/// Sums up.
pub fn summarise(answers: impl IntoIterator<Item = NodeAnswer>) -> IntentSummary {
    let mut sum = IntentSummary::default();
    for answer in answers {
        sum.matched += 1;
        sum.stale += usize::from(!answer.connected);
        match answer.state {
            Some(RuleState::Applied) => sum.applied += 1,
            Some(RuleState::Failed) => sum.failed += 1,
            Some(RuleState::NoMatch) => sum.no_match += 1,
            Some(RuleState::Suspended) => sum.suspended += 1,
            Some(RuleState::Pending) | None => sum.pending += 1,
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_node_counts_once_by_its_answer() {
        let answer = |connected, state| NodeAnswer { connected, state };
        let sum = summarise([
            answer(true, Some(RuleState::Applied)),
            answer(false, Some(RuleState::Applied)),
            answer(true, Some(RuleState::Failed)),
            answer(true, Some(RuleState::NoMatch)),
            answer(true, Some(RuleState::Suspended)),
            answer(true, None),
            answer(false, None),
        ]);
        let expected = IntentSummary {
            matched: 7,
            applied: 2,
            failed: 1,
            no_match: 1,
            suspended: 1,
            pending: 2,
            stale: 2,
            holding: Vec::new(),
        };
        assert_eq!(sum, expected);
    }
}
