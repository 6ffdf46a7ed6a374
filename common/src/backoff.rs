//! Waiting between attempts: a fast phase, then a slow one, full jitter in both, at the cap too, so that a fleet never
//! reconnects in step. PURE: randomness comes in.

use std::time::Duration;

/// Shape of a back-off.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    /// Upper bound of the first wait.
    pub first: Duration,
    /// Upper bound in the fast phase.
    pub fast_cap: Duration,
    /// Attempts that belong to the fast phase.
    pub fast_attempts: u32,
    /// Upper bound afterwards.
    pub slow_cap: Duration,
}

impl Backoff {
    /// For streams to a controller: back within seconds after a restart; some 30 s of that, then one attempt in 15 s and
    /// agent on average while it stays away.
    pub const RECONNECT: Backoff = Backoff {
        first: Duration::from_millis(100),
        fast_cap: Duration::from_secs(2),
        fast_attempts: 30,
        slow_cap: Duration::from_secs(30),
    };

    /// For a kernel write that was refused.
    pub const KERNEL_WRITE: Backoff = Backoff {
        first: Duration::from_secs(1),
        fast_cap: Duration::from_secs(8),
        fast_attempts: 5,
        slow_cap: Duration::from_secs(60),
    };

    /// How long to wait before attempt `attempt` (from 0), with `random` in 0.0..1.0. Never below a twentieth of the
    /// bound, so that a run of low draws is no busy loop.
    pub fn wait(&self, attempt: u32, random: f64) -> Duration {
        let cap = if attempt < self.fast_attempts { self.fast_cap } else { self.slow_cap };
        let bound = self.first.saturating_mul(1u32.checked_shl(attempt.min(20)).unwrap_or(u32::MAX)).min(cap);
        bound.mul_f64(random.clamp(0.05, 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::Backoff;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bounded_and_jittered_everywhere(attempt in 0u32..10_000, random in 0.0f64..1.0) {
            let b = Backoff::RECONNECT;
            let wait = b.wait(attempt, random);
            let cap = if attempt < b.fast_attempts { b.fast_cap } else { b.slow_cap };
            prop_assert!(wait <= cap);
            prop_assert!(wait >= b.first.mul_f64(0.05));
            // At the cap the draw still decides.
            if attempt > 10 { prop_assert!(b.wait(attempt, 0.2) < b.wait(attempt, 0.9)); }
        }
    }
}
