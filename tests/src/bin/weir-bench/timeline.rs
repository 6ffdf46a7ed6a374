//! Which changes were acknowledged, and when every node's kernel held each. PURE.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// A change of one intent that was acknowledged. Values of an intent only rise, so that a kernel that holds a later one has
/// been through this.
#[derive(Clone, Copy, Debug)]
struct Change {
    at: Instant,
    value: u64,
    held_after: Option<Duration>,
}

/// All acknowledged changes, by intent.
#[derive(Debug, Default)]
pub(crate) struct Timeline {
    changes: BTreeMap<usize, Vec<Change>>,
}

impl Timeline {
    /// A change of `intent` to `value` was acknowledged.
    pub(crate) fn acknowledged(&mut self, intent: usize, value: u64, at: Instant) {
        self.changes.entry(intent).or_default().push(Change { at, value, held_after: None });
    }

    /// The kernels of all nodes, looked at not after `at`, hold at least `lowest` for `intent`.
    pub(crate) fn all_hold(&mut self, intent: usize, lowest: u64, at: Instant) {
        for change in self.changes.entry(intent).or_default().iter_mut().rev() {
            if change.value <= lowest {
                if change.held_after.is_some() {
                    break;
                }
                change.held_after = Some(at.saturating_duration_since(change.at));
            }
        }
    }

    /// The last acknowledged value of an intent.
    pub(crate) fn last(&self, intent: usize) -> Option<u64> {
        self.changes.get(&intent)?.last().map(|change| change.value)
    }

    /// When the last of all was acknowledged.
    pub(crate) fn last_at(&self) -> Option<Instant> {
        self.changes.values().flatten().map(|change| change.at).max()
    }

    /// How many were acknowledged.
    pub(crate) fn len(&self) -> usize {
        self.changes.values().map(Vec::len).sum()
    }

    /// Longest time between two acknowledgements.
    pub(crate) fn longest_pause(&self) -> Duration {
        let mut times: Vec<Instant> = self.changes.values().flatten().map(|change| change.at).collect();
        times.sort();
        times.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default()
    }

    /// Seconds from acknowledgement to the last kernel, ascending; those that no look found held are left out.
    pub(crate) fn seconds_to_converge(&self) -> Vec<f64> {
        let held = self.changes.values().flatten().filter_map(|change| change.held_after);
        let mut seconds: Vec<f64> = held.map(|after| after.as_secs_f64()).collect();
        seconds.sort_by(f64::total_cmp);
        seconds
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_value_stands_for_the_earlier_ones() {
        let begin = Instant::now();
        let at = |ms| begin + Duration::from_millis(ms);
        let mut timeline = Timeline::default();
        timeline.acknowledged(0, 10, at(0));
        timeline.acknowledged(0, 20, at(1000));
        timeline.acknowledged(0, 30, at(2000));
        timeline.all_hold(0, 5, at(2100));
        assert_eq!(timeline.seconds_to_converge(), [0.0; 0]);
        timeline.all_hold(0, 25, at(2500));
        timeline.all_hold(0, 25, at(9000));
        assert_eq!(timeline.seconds_to_converge(), [1.5, 2.5]);
        timeline.all_hold(0, 30, at(2600));
        assert_eq!((timeline.seconds_to_converge(), timeline.last(0)), (vec![0.6, 1.5, 2.5], Some(30)));
        assert_eq!((timeline.len(), timeline.longest_pause()), (3, Duration::from_secs(1)));
        assert_eq!(timeline.last_at(), Some(at(2000)));
    }
}
