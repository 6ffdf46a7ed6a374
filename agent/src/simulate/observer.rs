//! Stands between the link and the loop of a modelled node and notes which fences were acted upon, from the answers alone. It
//! shares nothing with the code that accepts plans, so that a fault there shows.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{mpsc, oneshot};
use weir_common::fence::Fence;

use crate::{
    plan::Refusal,
    reconcile::{Command, Taken},
};

/// What was seen of plans.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// The highest fence acted upon.
    pub highest: Option<Fence>,
    /// Plans that were offered.
    pub offered: u64,
    /// Plans with a lower fence that were refused.
    pub lower_refused: u64,
    /// Plans with a lower fence that were acted upon: must be 0.
    pub lower_applied: u64,
}

/// The observer of one node. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Observer(Arc<Mutex<Seen>>);

impl Observer {
    /// What was seen so far.
    pub fn seen(&self) -> Seen {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The node acts upon this fence.
    pub fn acts_upon(&self, fence: Option<Fence>) {
        self.looked(|| fence);
    }

    /// The node acts upon the fence that the look finds. A plan may be answered during the look: only what was acted upon before
    /// counts against what is found.
    pub fn looked(&self, look: impl FnOnce() -> Option<Fence>) {
        let before = self.seen().highest;
        let fence = look();
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if fence < before {
            seen.lower_applied += 1;
        }
        seen.highest = seen.highest.max(fence);
    }

    fn answered(&self, offered: Fence, taken: &Taken) {
        let highest = {
            let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            seen.offered += 1;
            if matches!(taken, Err((Refusal::LowerFence { .. }, _))) {
                seen.lower_refused += 1;
            }
            seen.highest
        };
        if let Ok(report) = taken {
            // What it says it acts upon, and what it was told to, must both not be lower.
            self.acts_upon(if Some(offered) < highest { Some(offered) } else { report.fence });
        }
    }

    /// Hands commands on until either end is gone.
    pub async fn relay(self, mut from_link: mpsc::Receiver<Command>, to_loop: mpsc::Sender<Command>) {
        while let Some(command) = from_link.recv().await {
            match command {
                Command::Offer(offer, contexts, reply) => {
                    let offered = offer.fence();
                    let (answer, answered) = oneshot::channel();
                    if to_loop.send(Command::Offer(offer, contexts, answer)).await.is_err() {
                        return;
                    }
                    let Ok(taken) = answered.await else { return };
                    self.answered(offered, &taken);
                    // The session may have ended.
                    let _gone = reply.send(taken);
                }
                Command::Workloads(pattern, reply) => {
                    if to_loop.send(Command::Workloads(pattern, reply)).await.is_err() {
                        return;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::enforce::report::Report;

    fn fence(revision: u64) -> Fence {
        Fence { store_epoch: 1, revision, facts_generation: 1 }
    }

    fn took(revision: u64) -> Taken {
        Ok(Arc::new(Report { fence: Some(fence(revision)), ..Report::default() }))
    }

    #[test]
    fn a_lower_fence_that_was_acted_upon_shows() {
        let observer = Observer::default();
        observer.acts_upon(None);
        observer.answered(fence(5), &took(5));
        observer.answered(fence(5), &took(5));
        assert_eq!((observer.seen().highest, observer.seen().lower_applied), (Some(fence(5)), 0));
        let refusal = Refusal::LowerFence { offered: fence(4), held: fence(5) };
        observer.answered(fence(4), &Err((refusal, Some(fence(5)))));
        assert_eq!((observer.seen().lower_refused, observer.seen().lower_applied), (1, 0));
        // Acted upon, whatever it says of itself.
        observer.answered(fence(4), &took(4));
        observer.answered(fence(4), &took(9));
        observer.acts_upon(None);
        assert_eq!((observer.seen().highest, observer.seen().lower_applied), (Some(fence(5)), 3));
    }
}
