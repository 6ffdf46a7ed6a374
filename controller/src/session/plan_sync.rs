//! PURE: what one agent has, what it should have, and what to send next. One plan is on its way at a time; newer ones
//! coalesce into the next.
//!
//! The fence of what is sent never goes down: its revision is that of the last store change that the plan reflects, and
//! where only facts changed its last part rises. That part is counted here alone, from the fence that the agent holds: were
//! the agent's own count added, it would double with every session. A plan that has not changed is not sent again, however far the store's
//! revision has gone on.

use std::{collections::BTreeSet, sync::Arc};

use weir_common::fence::Fence;

use crate::{
    model::Directive,
    plan::{Delta, Plan, diff},
};

/// Changes above which a whole plan is sent instead: it goes rule by rule, while a difference is one message.
const MAX_DELTA: usize = 500;

/// A plan under a fence.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sent {
    pub(crate) fence: Fence,
    pub(crate) plan: Arc<Plan>,
    pub(crate) directive: Directive,
}

/// What to send.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Push {
    Whole(Sent),
    Delta { from: Fence, fence: Fence, delta: Delta, directive: Directive },
}

impl Push {
    /// Whether it can bring a change of an intent. A whole plan says nothing of what it takes away.
    pub(crate) fn brings(&self, uid: &str) -> bool {
        match self {
            Push::Whole(_) => true,
            Push::Delta { delta, .. } => {
                delta.apply.iter().any(|rule| rule.uid == uid) || delta.delete.iter().any(|gone| gone == uid)
            }
        }
    }

    /// The fence that the agent has afterwards.
    pub(crate) fn fence(&self) -> Fence {
        match self {
            Push::Whole(sent) => sent.fence,
            Push::Delta { fence, .. } => *fence,
        }
    }
}

/// Why an agent refused a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NackReason {
    /// Nor will the same plan be taken later: of an older state of the store, or of another store.
    LowerFence,
    UnexpectedBase,
    /// Storage, or something that this version does not know.
    Other,
}

/// What follows from a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AfterNack {
    /// Send again at once.
    PushAgain,
    /// Send again after a while: call [`PlanSync::retry`].
    RetryLater,
    /// Wait for the next change.
    Wait,
    /// The refusal was of a plan that is not on its way.
    Ignore,
}

#[derive(Debug)]
pub(crate) struct PlanSync {
    epoch: u64,
    /// Revision of the last store change that `desired` reflects.
    revision: u64,
    /// Counts on under one revision of the store, over sessions.
    facts_generation: u64,
    desired: Arc<Plan>,
    directive: Directive,
    acknowledged: Option<Sent>,
    in_flight: Option<Sent>,
    last_sent: Option<Fence>,
    /// Nothing is sent until something changes, or `retry`.
    blocked: bool,
}

impl PlanSync {
    /// A session begins: `held` is the fence that the agent says it has.
    pub(crate) fn new(epoch: u64, revision: u64, held: Option<Fence>, desired: Plan, directive: Directive) -> Self {
        let before = match held {
            Some(held) if held.store_epoch == epoch && held.revision == revision => held.facts_generation,
            _ => 0,
        };
        PlanSync {
            epoch,
            revision,
            facts_generation: before.saturating_add(1),
            desired: Arc::new(desired),
            directive,
            acknowledged: None,
            in_flight: None,
            last_sent: None,
            blocked: false,
        }
    }

    /// What the agent should have, as of a revision of the store. Whether that is news.
    pub(crate) fn desire(&mut self, revision: u64, plan: Plan, directive: Directive) -> bool {
        if plan.rules == self.desired.rules && directive == self.directive {
            // What is withheld may have changed: that is for reports, and is not sent.
            self.desired = Arc::new(plan);
            return false;
        }
        self.revision = self.revision.max(revision);
        self.desired = Arc::new(plan);
        self.directive = directive;
        self.blocked = false;
        true
    }

    /// The facts changed.
    pub(crate) fn facts_changed(&mut self) {
        self.facts_generation = self.facts_generation.saturating_add(1);
    }

    /// What to send now; it is on its way then.
    pub(crate) fn next(&mut self) -> Option<Push> {
        if self.in_flight.is_some() || self.blocked {
            return None;
        }
        let settled = self
            .acknowledged
            .as_ref()
            .is_some_and(|sent| sent.directive == self.directive && sent.plan.rules == self.desired.rules);
        if settled {
            return None;
        }
        let fence = self.next_fence();
        let sent = Sent { fence, plan: Arc::clone(&self.desired), directive: self.directive };
        let push = match &self.acknowledged {
            Some(base) => {
                let delta = diff(&base.plan, &sent.plan);
                if delta.apply.len() + delta.delete.len() > MAX_DELTA {
                    Push::Whole(sent.clone())
                } else {
                    Push::Delta { from: base.fence, fence, delta, directive: self.directive }
                }
            }
            None => Push::Whole(sent.clone()),
        };
        self.last_sent = Some(fence);
        self.in_flight = Some(sent);
        Some(push)
    }

    fn next_fence(&mut self) -> Fence {
        if let Some(last) = self.last_sent
            && (last.revision, last.facts_generation) >= (self.revision, self.facts_generation)
        {
            // The agent asked again: the revision never goes down.
            self.facts_generation = last.facts_generation.saturating_add(1);
        }
        Fence { store_epoch: self.epoch, revision: self.revision, facts_generation: self.facts_generation }
    }

    /// The agent accepted a plan. Whether it is the one on its way.
    pub(crate) fn ack(&mut self, fence: Fence) -> bool {
        if self.in_flight.as_ref().is_none_or(|sent| sent.fence != fence) {
            return false;
        }
        self.acknowledged = self.in_flight.take();
        true
    }

    /// The agent refused a plan.
    pub(crate) fn nack(&mut self, fence: Fence, reason: &NackReason) -> AfterNack {
        if self.in_flight.as_ref().is_none_or(|sent| sent.fence != fence) {
            return AfterNack::Ignore;
        }
        let refused = self.in_flight.take();
        match reason {
            NackReason::UnexpectedBase => {
                // A whole plan has no base: refusing that for its base would go on for ever.
                let was_delta = self.acknowledged.take().is_some();
                if was_delta { AfterNack::PushAgain } else { self.block(AfterNack::RetryLater) }
            }
            NackReason::LowerFence => {
                self.acknowledged = None;
                drop(refused);
                self.block(AfterNack::Wait)
            }
            NackReason::Other => self.block(AfterNack::RetryLater),
        }
    }

    fn block(&mut self, after: AfterNack) -> AfterNack {
        self.blocked = true;
        after
    }

    /// Try again what was refused.
    pub(crate) fn retry(&mut self) {
        self.blocked = false;
    }

    /// Whether a plan was sent that is neither acknowledged nor refused.
    pub(crate) fn is_in_flight(&self) -> bool {
        self.in_flight.is_some()
    }

    /// Whether a plan was acknowledged in this session.
    pub(crate) fn has_acknowledged(&self) -> bool {
        self.acknowledged.is_some()
    }

    /// Whether nothing is on its way and nothing is to be sent.
    pub(crate) fn is_settled(&self) -> bool {
        self.in_flight.is_none() && self.acknowledged.as_ref().is_some_and(|sent| sent.plan.rules == self.desired.rules)
    }

    /// Uids of all rules that the agent may have, of plans of this session.
    pub(crate) fn uids(&self) -> BTreeSet<String> {
        let plans = self.acknowledged.iter().chain(&self.in_flight);
        plans.flat_map(|sent| sent.plan.uids().map(str::to_owned)).collect()
    }

    /// The plan that the agent should have.
    pub(crate) fn desired(&self) -> &Plan {
        &self.desired
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{NodeView, features, plan, tests::intent};
    use proptest::prelude::*;

    fn some_plan(ids: &[&str]) -> Plan {
        let node = NodeView {
            name: "n1".parse().unwrap(),
            labels: Default::default(),
            features: features::BUILT.iter().map(|&f| f.to_owned()).collect(),
        };
        let intents: Vec<_> = ids.iter().map(|id| intent(id, 0, &["n1"])).collect();
        plan(&intents, &node)
    }

    fn sync(held: Option<Fence>) -> PlanSync {
        PlanSync::new(1, 50, held, some_plan(&["a"]), Directive::Active)
    }

    fn fence(revision: u64, facts_generation: u64) -> Fence {
        Fence { store_epoch: 1, revision, facts_generation }
    }

    #[test]
    fn a_whole_plan_first_then_differences_and_one_at_a_time() {
        let mut sync = sync(None);
        let first = sync.next().unwrap();
        assert!(matches!(&first, Push::Whole(sent) if sent.fence == fence(50, 1)));
        assert_eq!(sync.next(), None);
        assert!(sync.desire(60, some_plan(&["a", "b"]), Directive::Active));
        assert!(sync.desire(61, some_plan(&["b"]), Directive::Active));
        assert_eq!(sync.next(), None, "one at a time");
        assert!(!sync.ack(fence(49, 1)), "an answer to something else");
        assert!(sync.ack(first.fence()));
        match sync.next().unwrap() {
            Push::Delta { from, fence: to, delta, .. } => {
                assert_eq!((from, to), (fence(50, 1), fence(61, 1)));
                assert_eq!((delta.apply.len(), delta.delete.len()), (1, 1), "coalesced");
            }
            other => panic!("{other:?}"),
        }
        assert!(!sync.is_settled());
        assert!(sync.ack(fence(61, 1)) && sync.is_settled());
    }

    #[test]
    fn nothing_is_sent_for_what_does_not_change_the_plan() {
        let mut sync = sync(None);
        let first = sync.next().unwrap().fence();
        sync.ack(first);
        assert!(!sync.desire(99, some_plan(&["a"]), Directive::Active));
        sync.facts_changed();
        assert_eq!(sync.next(), None);
        assert!(sync.desire(100, some_plan(&["a"]), Directive::Paused));
        assert!(
            matches!(sync.next(), Some(Push::Delta { directive: Directive::Paused, delta, .. }) if delta == Delta::default())
        );
    }

    #[test]
    fn what_was_taken_back_before_it_was_sent_is_not_sent() {
        let mut sync = sync(None);
        let first = sync.next().unwrap().fence();
        sync.ack(first);
        sync.desire(60, some_plan(&["b"]), Directive::Active);
        sync.desire(61, some_plan(&["a"]), Directive::Active);
        assert_eq!(sync.next().map(|push| push.fence()), None);
    }

    #[test]
    fn the_fence_rises_above_the_one_that_is_held_under_the_same_revision() {
        assert_eq!(sync(Some(fence(50, 7))).next().unwrap().fence(), fence(50, 8));
        assert_eq!(sync(Some(fence(49, 7))).next().unwrap().fence(), fence(50, 1));
        // A store that went back in time without a new epoch is not helped along: the agent is to refuse it.
        assert_eq!(sync(Some(fence(51, 7))).next().unwrap().fence(), fence(50, 1));
    }

    #[test]
    fn sessions_without_a_change_count_by_one() {
        let mut held = None;
        for session in 1..=200 {
            let mut sync = sync(held);
            let sent = sync.next().unwrap().fence();
            assert_eq!(sent, fence(50, session));
            assert!(sync.ack(sent));
            held = Some(sent);
        }
    }

    #[test]
    fn refusals() {
        let mut sync = sync(None);
        let first = sync.next().unwrap().fence();
        sync.ack(first);
        sync.desire(60, some_plan(&["b"]), Directive::Active);
        let second = sync.next().unwrap().fence();
        assert_eq!(sync.nack(first, &NackReason::Other), AfterNack::Ignore);
        assert_eq!(sync.nack(second, &NackReason::UnexpectedBase), AfterNack::PushAgain);
        let third = sync.next().unwrap();
        assert!(matches!(third, Push::Whole(_)));
        assert!(third.fence() > second);
        assert_eq!(sync.nack(third.fence(), &NackReason::Other), AfterNack::RetryLater);
        assert_eq!(sync.next(), None);
        sync.retry();
        let fourth = sync.next().unwrap();
        assert_eq!(sync.nack(fourth.fence(), &NackReason::LowerFence), AfterNack::Wait);
        assert_eq!(sync.next(), None);
        assert!(sync.desire(70, some_plan(&["c"]), Directive::Active));
        assert!(matches!(sync.next(), Some(Push::Whole(_))));
    }

    #[test]
    fn many_changes_go_as_a_whole_plan() {
        let mut sync = sync(None);
        let first = sync.next().unwrap().fence();
        sync.ack(first);
        let ids: Vec<String> = (0..=MAX_DELTA).map(|i| format!("i{i}")).collect();
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        sync.desire(60, some_plan(&ids), Directive::Active);
        assert!(matches!(sync.next(), Some(Push::Whole(_))));
    }

    #[derive(Clone, Debug)]
    enum Step {
        Desire(u8),
        Facts,
        Next,
        Ack,
        Nack(u8),
        Retry,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0u8..4).prop_map(Step::Desire),
            Just(Step::Facts),
            Just(Step::Next),
            Just(Step::Ack),
            (0u8..3).prop_map(Step::Nack),
            Just(Step::Retry),
        ]
    }

    proptest! {
        /// An agent that applies what it accepts always has exactly the plan that it was acknowledged for, and fences
        /// never go down.
        #[test]
        fn an_agent_ends_up_with_what_is_desired(steps in proptest::collection::vec(step(), 0..60)) {
            let plans = [some_plan(&[]), some_plan(&["a"]), some_plan(&["a", "b"]), some_plan(&["b", "c"])];
            let mut sync = sync(None);
            let mut revision = 50;
            let mut on_its_way: Option<Push> = None;
            let mut agent: Option<(Fence, Vec<String>)> = None;
            let mut highest = Fence::default();
            let accept = |push: &Push, agent: &mut Option<(Fence, Vec<String>)>| match push {
                Push::Whole(sent) => *agent = Some((sent.fence, sent.plan.uids().map(str::to_owned).collect())),
                Push::Delta { from, fence, delta, .. } => {
                    let (held, uids) = agent.as_mut().unwrap();
                    assert_eq!(held, from);
                    *held = *fence;
                    uids.retain(|uid| !delta.delete.contains(uid));
                    for rule in &delta.apply {
                        if !uids.contains(&rule.uid) {
                            uids.push(rule.uid.clone());
                        }
                    }
                }
            };
            let mut finish = vec![Step::Ack, Step::Retry, Step::Next, Step::Ack, Step::Next, Step::Ack];
            let mut all = steps;
            all.append(&mut finish);
            for step in all {
                match step {
                    Step::Desire(i) => {
                        revision += 1;
                        sync.desire(revision, plans[usize::from(i)].clone(), Directive::Active);
                    }
                    Step::Facts => {
                        sync.facts_changed();
                    }
                    Step::Next => {
                        if let Some(push) = sync.next() {
                            prop_assert!(on_its_way.is_none());
                            prop_assert!(push.fence() > highest, "{:?} {:?}", push.fence(), highest);
                            highest = push.fence();
                            on_its_way = Some(push);
                        }
                    }
                    Step::Ack => {
                        if let Some(push) = on_its_way.take() {
                            accept(&push, &mut agent);
                            prop_assert!(sync.ack(push.fence()));
                        }
                    }
                    Step::Nack(i) => {
                        if let Some(push) = on_its_way.take() {
                            let reason =
                                [NackReason::LowerFence, NackReason::UnexpectedBase, NackReason::Other][usize::from(i)].clone();
                            sync.nack(push.fence(), &reason);
                        }
                    }
                    Step::Retry => sync.retry(),
                }
            }
            prop_assert!(sync.is_settled());
            let mut have = agent.unwrap().1;
            have.sort();
            let mut want: Vec<String> = sync.desired().uids().map(str::to_owned).collect();
            want.sort();
            prop_assert_eq!(have, want);
        }
    }
}
