//! The maximum over a moving window, from its three best values (Nichols; Linux: `win_minmax.c`).

#[derive(Clone, Copy, Debug, Default)]
struct Value {
    at: u32,
    value: f64,
}

/// Best, second and third best value, each younger than the one before.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::tcp::congestion) struct Maximum([Value; 3]);

impl Maximum {
    pub(crate) fn get(&self) -> f64 {
        self.0[0].value
    }

    /// A value at a time, which does not decrease.
    pub(crate) fn update(&mut self, window: u32, at: u32, value: f64) {
        let new = Value { at, value };
        let best = &mut self.0;
        if value >= best[0].value || at - best[2].at > window {
            *best = [new; 3];
            return;
        }
        if value >= best[1].value {
            best[1] = new;
            best[2] = new;
        } else if value >= best[2].value {
            best[2] = new;
        }
        let age = at - best[0].at;
        if age > window {
            *best = [best[1], best[2], new];
            if at - best[0].at > window {
                *best = [best[1], best[2], new];
            }
        } else if best[1].at == best[0].at && age > window / 4 {
            // A quarter of the window without a second value: take it from the rest.
            best[1] = new;
            best[2] = new;
        } else if best[2].at == best[1].at && age > window / 2 {
            best[2] = new;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// At least the newest value; never one that is older than the window, or that never was.
        #[test]
        fn it_is_a_maximum_of_recent_values(values in prop::collection::vec(0u32..1000, 1..200)) {
            let mut maximum = Maximum::default();
            for (at, value) in values.iter().enumerate() {
                maximum.update(10, at as u32, f64::from(*value));
                let recent = &values[at.saturating_sub(10)..=at];
                let most = f64::from(*recent.iter().max().expect("one at least"));
                prop_assert!(maximum.get() >= f64::from(*value) && maximum.get() <= most);
                prop_assert!(recent.iter().any(|value| f64::from(*value) == maximum.get()));
            }
        }
    }
}
