//! Cumulative counters over time: a ring of samples from which a rate over a stated window is taken. PURE.

use std::{collections::VecDeque, time::Duration};

/// One sample of cumulative counters at a monotonic instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample<const N: usize> {
    /// Monotonic clock, nanoseconds, of whoever sampled.
    pub at_ns: u64,
    /// Monotonic clock at which counting began: another value is another life of the counter.
    pub since_ns: u64,
    /// The counters.
    pub values: [u64; N],
}

/// What was counted between two samples.
#[derive(Clone, Debug, PartialEq)]
pub struct Window<const N: usize> {
    /// Time between the samples; never zero.
    pub span: Duration,
    /// Differences of the counters.
    pub deltas: [u64; N],
    /// Monotonic clock of the later sample, nanoseconds.
    pub end_ns: u64,
}

impl<const N: usize> Window<N> {
    /// Mean of one counter, per second.
    pub fn per_second(&self, index: usize) -> f64 {
        self.deltas[index] as f64 / self.span.as_secs_f64()
    }
}

/// The latest samples of one counter's life.
#[derive(Clone, Debug)]
pub struct Ring<const N: usize> {
    samples: VecDeque<Sample<N>>,
    keep: Duration,
}

impl<const N: usize> Ring<N> {
    /// Keeps samples as old as `keep`, and one that is older.
    pub fn new(keep: Duration) -> Self {
        Ring { samples: VecDeque::new(), keep }
    }

    /// Adds a sample. One that is not later is dropped; one whose counters went back, or that began counting anew, starts
    /// a new life: what was before is forgotten, so that no rate is ever negative or a lifetime's total.
    pub fn push(&mut self, sample: Sample<N>) {
        if let Some(last) = self.samples.back() {
            let reset =
                sample.since_ns != last.since_ns || sample.values.iter().zip(&last.values).any(|(new, old)| new < old);
            if reset {
                self.samples.clear();
            } else if sample.at_ns <= last.at_ns {
                return;
            }
        }
        let horizon = sample.at_ns.saturating_sub(u64::try_from(self.keep.as_nanos()).unwrap_or(u64::MAX));
        self.samples.push_back(sample);
        while self.samples.len() > 2 && self.samples[1].at_ns <= horizon {
            self.samples.pop_front();
        }
    }

    /// The window of about `wanted` that ends at the latest sample: as long as the samples allow where they are fewer.
    /// `None` before the second sample.
    pub fn window(&self, wanted: Duration) -> Option<Window<N>> {
        self.window_since(0, wanted)
    }

    /// As `window`, of samples alone that were taken at `since_ns` of the sampler's monotonic clock or later.
    pub fn window_since(&self, since_ns: u64, wanted: Duration) -> Option<Window<N>> {
        let last = self.samples.back()?;
        let start_ns = last.at_ns.saturating_sub(u64::try_from(wanted.as_nanos()).unwrap_or(u64::MAX));
        let first = self
            .samples
            .iter()
            .filter(|sample| sample.at_ns < last.at_ns && sample.at_ns >= since_ns)
            .min_by_key(|sample| sample.at_ns.abs_diff(start_ns))?;
        let mut deltas = [0; N];
        for (delta, (new, old)) in deltas.iter_mut().zip(last.values.iter().zip(&first.values)) {
            *delta = new.saturating_sub(*old);
        }
        Some(Window { span: Duration::from_nanos(last.at_ns - first.at_ns), deltas, end_ns: last.at_ns })
    }

    /// The latest sample.
    pub fn last(&self) -> Option<&Sample<N>> {
        self.samples.back()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample(at_s: u64, since_ns: u64, value: u64) -> Sample<1> {
        Sample { at_ns: at_s * 1_000_000_000, since_ns, values: [value] }
    }

    #[test]
    fn the_first_sample_is_no_rate_and_a_reset_starts_anew() {
        let mut ring = Ring::new(Duration::from_secs(10));
        ring.push(sample(1, 0, 1_000_000));
        assert_eq!(ring.window(Duration::from_secs(10)), None);
        ring.push(sample(2, 0, 1_000_100));
        assert_eq!(ring.window(Duration::from_secs(10)).unwrap().deltas, [100]);
        ring.push(sample(3, 0, 50));
        assert_eq!(ring.window(Duration::from_secs(10)), None);
        ring.push(sample(4, 0, 60));
        assert_eq!(ring.window(Duration::from_secs(10)).unwrap().deltas, [10]);
        assert_eq!(ring.window_since(3_000_000_000, Duration::from_secs(10)).unwrap().deltas, [10]);
        assert_eq!(ring.window_since(3_000_000_001, Duration::from_secs(10)), None);
        ring.push(sample(5, 7, 99));
        assert_eq!(ring.window(Duration::from_secs(10)), None);
    }

    proptest! {
        #[test]
        fn a_window_is_as_long_as_asked_once_samples_suffice(steps in proptest::collection::vec(0u64..1000, 15..40)) {
            let mut ring = Ring::new(Duration::from_secs(10));
            let mut total = 0;
            for (i, step) in steps.iter().enumerate() {
                total += step;
                ring.push(sample(i as u64 + 1, 0, total));
            }
            let window = ring.window(Duration::from_secs(10)).unwrap();
            prop_assert_eq!(window.span, Duration::from_secs(10));
            prop_assert_eq!(window.deltas[0], steps[steps.len() - 10..].iter().sum::<u64>());
        }
    }
}
