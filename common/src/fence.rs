//! The order of plans.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Orders plans, field by field. An agent refuses a plan with a lower fence than the one that it holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Fence {
    /// Epoch of the store; rises when a store is restored or migrated.
    pub store_epoch: u64,
    /// Revision of the store.
    pub revision: u64,
    /// Generation of the node's facts under one revision; the controller counts it, in a new session from the plan that the
    /// agent holds.
    pub facts_generation: u64,
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.store_epoch, self.revision, self.facts_generation)
    }
}

#[cfg(test)]
mod tests {
    use super::Fence;

    #[test]
    fn the_epoch_outranks_the_revision() {
        let old = Fence { store_epoch: 1, revision: 900, facts_generation: 9 };
        let restored = Fence { store_epoch: 2, revision: 3, facts_generation: 1 };
        assert!(restored > old);
    }
}
