//! Which plans are taken: a whole one whose fence is not lower, or a change that builds on the plan held. PURE.

use std::collections::BTreeMap;

use weir_common::fence::Fence;

use super::{Directive, Plan, Rule};

/// What a controller sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Offer {
    /// A whole plan.
    Whole(Plan),
    /// A change of the plan held; all of it, or nothing.
    Delta {
        /// Fence of the plan that it builds on.
        from: Fence,
        /// Fence afterwards.
        fence: Fence,
        /// Rules that are new or changed.
        apply: Vec<Rule>,
        /// Uids of rules that are gone.
        delete: Vec<String>,
        /// What the node is told as a whole.
        directive: Directive,
    },
}

impl Offer {
    /// The fence that the plan would have.
    pub fn fence(&self) -> Fence {
        match self {
            Offer::Whole(plan) => plan.fence,
            Offer::Delta { fence, .. } => *fence,
        }
    }
}

/// Why a plan was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It is older than the one held.
    #[error("fence {offered} is lower than {held}, which this node holds")]
    LowerFence {
        /// The offered fence.
        offered: Fence,
        /// The fence held.
        held: Fence,
    },
    /// It comes from another store than the plan held, and nobody said that this is the one to follow now.
    #[error(
        "it comes from store {offered}, this node follows store {held}: where the fleet is to follow the other store, give \
         that a higher epoch (weir-controller store raise-epoch --store STORE)"
    )]
    OtherStore {
        /// The store of the offered plan.
        offered: String,
        /// The store of the plan held.
        held: String,
    },
    /// A change that builds on another plan than the one held.
    #[error("the change builds on fence {from}, this node holds {}", .held.map_or("no plan".to_owned(), |f| f.to_string()))]
    UnexpectedBase {
        /// What it builds on.
        from: Fence,
        /// The fence held.
        held: Option<Fence>,
    },
    /// It could not be stored, so it was not acted upon.
    #[error("the plan could not be stored: {0}")]
    StorageFailed(String),
    /// Its directive for the node is one that this agent does not know.
    #[error("this agent does not know its directive {0}: a newer agent does")]
    UnknownDirective(i32),
}

impl Refusal {
    /// The documented reason of a Nack.
    pub fn reason(&self) -> &'static str {
        match self {
            Refusal::LowerFence { .. } => "LowerFence",
            Refusal::OtherStore { .. } => "OtherStore",
            Refusal::UnexpectedBase { .. } => "UnexpectedBase",
            Refusal::StorageFailed(_) => "StorageFailed",
            Refusal::UnknownDirective(_) => "UnknownDirective",
        }
    }
}

/// The plan after `offer`, with rules in the order of their uids. `settings_held` is how many settings the node owns.
///
/// # Errors
/// Why it is not taken; the plan held stays as it is.
pub fn accept(held: Option<&Plan>, settings_held: usize, offer: Offer) -> Result<Plan, Refusal> {
    let mut held = held;
    let offered = offer.fence();
    if let (Some(plan), Offer::Whole(Plan { store_uid, .. })) = (held, &offer)
        && !(plan.store_uid.is_empty() || store_uid.is_empty() || plan.store_uid == *store_uid)
        && offered.store_epoch <= plan.fence.store_epoch
    {
        if settings_held > 0 || wants_anything(plan) {
            return Err(Refusal::OtherStore { offered: store_uid.clone(), held: plan.store_uid.clone() });
        }
        // Nothing is lost by following another store, whose fences count anew.
        held = None;
    }
    let held_fence = held.map(|plan| plan.fence);
    if let Some(held) = held_fence
        && offered < held
    {
        return Err(Refusal::LowerFence { offered, held });
    }
    let (store_uid, mut rules, directive, changes) = match offer {
        Offer::Whole(plan) => (plan.store_uid, BTreeMap::new(), plan.directive, plan.rules),
        Offer::Delta { from, apply, delete, directive, .. } => {
            let Some(held) = held.filter(|plan| plan.fence == from) else {
                return Err(Refusal::UnexpectedBase { from, held: held_fence });
            };
            let mut rules: BTreeMap<String, Rule> =
                held.rules.iter().map(|rule| (rule.uid.clone(), rule.clone())).collect();
            for uid in &delete {
                rules.remove(uid);
            }
            (held.store_uid.clone(), rules, directive, apply)
        }
    };
    rules.extend(changes.into_iter().map(|rule| (rule.uid.clone(), rule)));
    Ok(Plan { store_uid, fence: offered, directive, rules: rules.into_values().collect() })
}

/// Whether a plan has the node keep, or go on keeping, any setting.
fn wants_anything(plan: &Plan) -> bool {
    plan.directive != Directive::Released && !plan.rules.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resolve::testing::rule;

    fn fence(revision: u64) -> Fence {
        Fence { store_epoch: 1, revision, facts_generation: 1 }
    }

    fn whole(revision: u64, uids: &[&str]) -> Plan {
        let rules = uids.iter().map(|uid| rule(uid, "/a", 1)).collect();
        Plan { store_uid: String::new(), fence: fence(revision), directive: Directive::Active, rules }
    }

    fn delta(from: u64, to: u64, apply: &[&str], delete: &[&str]) -> Offer {
        Offer::Delta {
            from: fence(from),
            fence: fence(to),
            apply: apply.iter().map(|uid| rule(uid, "/a", 1)).collect(),
            delete: delete.iter().map(|uid| (*uid).to_owned()).collect(),
            directive: Directive::Paused,
        }
    }

    #[test]
    fn a_change_builds_on_what_is_held_or_is_refused_whole() {
        let held = whole(5, &["a", "b"]);
        let plan = accept(Some(&held), 0, delta(5, 7, &["c"], &["a"])).unwrap();
        assert_eq!(plan.rules.iter().map(|r| r.uid.as_str()).collect::<Vec<_>>(), ["b", "c"]);
        assert_eq!((plan.fence, plan.directive), (fence(7), Directive::Paused));
        assert_eq!(
            accept(Some(&held), 0, delta(4, 7, &["c"], &[])),
            Err(Refusal::UnexpectedBase { from: fence(4), held: Some(fence(5)) })
        );
        assert_eq!(accept(None, 0, delta(4, 7, &[], &[])).unwrap_err().reason(), "UnexpectedBase");
    }

    #[test]
    fn a_lower_fence_is_refused_and_an_equal_one_is_not() {
        let held = whole(5, &["a"]);
        assert_eq!(accept(Some(&held), 0, Offer::Whole(whole(4, &[]))).unwrap_err().reason(), "LowerFence");
        assert_eq!(accept(Some(&held), 0, Offer::Whole(whole(5, &[]))).unwrap().rules, []);
        let restored = Plan { fence: Fence { store_epoch: 2, revision: 1, facts_generation: 1 }, ..whole(1, &["z"]) };
        assert_eq!(accept(Some(&held), 0, Offer::Whole(restored.clone())), Ok(restored));
    }

    #[test]
    fn another_store_is_followed_only_with_a_higher_epoch() {
        let of = |store: &str, epoch, revision, uids: &[&str]| Plan {
            store_uid: store.to_owned(),
            fence: Fence { store_epoch: epoch, revision, facts_generation: 1 },
            ..whole(1, uids)
        };
        let held = of("a", 1, 5, &["r"]);
        let refused = accept(Some(&held), 0, Offer::Whole(of("b", 1, 900, &[]))).unwrap_err();
        assert_eq!(
            refused.reason(),
            "OtherStore",
            "a store that was made anew releases nothing, whatever its revision"
        );
        assert_eq!(accept(Some(&held), 0, Offer::Whole(of("b", 2, 1, &[]))).unwrap(), of("b", 2, 1, &[]));
        // A ledger, or a controller, of a version that did not say.
        assert!(accept(Some(&of("", 1, 5, &["r"])), 0, Offer::Whole(of("b", 1, 6, &[]))).is_ok());
        let next = accept(Some(&held), 0, delta(5, 7, &["c"], &[])).unwrap();
        assert_eq!(next.store_uid, "a", "a change is of the store that it builds on");
    }
    #[test]
    fn a_node_with_nothing_to_lose_follows_a_store_that_was_made_anew() {
        let of = |store: &str, revision, directive, uids: &[&str]| Plan {
            store_uid: store.to_owned(),
            directive,
            ..whole(revision, uids)
        };
        let anew = of("b", 1, Directive::Active, &["z"]);
        let take = |held: &Plan, settings| accept(Some(held), settings, Offer::Whole(anew.clone()));
        let other = |taken: Result<Plan, Refusal>| taken.unwrap_err().reason();

        let released = of("a", 9, Directive::Released, &["r"]);
        assert_eq!(take(&released, 0), Ok(anew.clone()));
        assert_eq!(other(take(&released, 1)), "OtherStore", "its release has not ended");
        assert_eq!(take(&of("a", 9, Directive::Active, &[]), 0), Ok(anew.clone()), "it never had a rule");
        assert_eq!(other(take(&of("a", 9, Directive::Active, &[]), 1)), "OtherStore");
        assert_eq!(other(take(&of("a", 9, Directive::Active, &["r"]), 0)), "OtherStore", "a pod may yet come");
        assert_eq!(other(take(&of("a", 9, Directive::Paused, &["r"]), 0)), "OtherStore");
        // Within one store a release changes nothing about the order.
        let earlier = of("a", 8, Directive::Active, &["r"]);
        assert_eq!(accept(Some(&released), 0, Offer::Whole(earlier)).unwrap_err().reason(), "LowerFence");
        let change = accept(Some(&anew), 0, delta(9, 10, &["r"], &[]));
        assert_eq!(
            change.unwrap_err().reason(),
            "UnexpectedBase",
            "what the other store was about to change is refused"
        );
    }
}
