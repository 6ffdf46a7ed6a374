//! What was in force before and may still have left traces.

use serde::{Deserialize, Serialize};

/// More than this many collapse to [`Earlier::Any`].
const KEPT: usize = 16;

/// Earlier values that may still have an effect somewhere, deduplicated and bounded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Earlier<T> {
    /// These.
    Known(Vec<T>),
    /// Too many were kept: any value is possible.
    Any,
}

impl<T> Default for Earlier<T> {
    fn default() -> Self {
        Earlier::Known(Vec::new())
    }
}

impl<T: PartialEq> Earlier<T> {
    /// Remembers a value.
    pub fn remember(&mut self, value: T) {
        if let Earlier::Known(known) = self
            && !known.contains(&value)
        {
            known.push(value);
            if known.len() > KEPT {
                *self = Earlier::Any;
            }
        }
    }

    /// Whether nothing is remembered.
    pub fn is_empty(&self) -> bool {
        matches!(self, Earlier::Known(known) if known.is_empty())
    }

    /// Whether one of the remembered values satisfies `test`; with [`Earlier::Any`] always.
    pub fn any(&self, test: impl FnMut(&T) -> bool) -> bool {
        match self {
            Earlier::Known(known) => known.iter().any(test),
            Earlier::Any => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeats_are_kept_once_and_too_many_mean_any() {
        let mut earlier = Earlier::default();
        assert!(earlier.is_empty() && !earlier.any(|_: &usize| true));
        for i in 0..KEPT {
            earlier.remember(i);
            earlier.remember(i);
        }
        assert!(earlier.any(|&i| i == 3) && !earlier.any(|&i| i == 99));
        earlier.remember(KEPT);
        assert_eq!(earlier, Earlier::Any);
        assert!(earlier.any(|_| false));
    }
}
