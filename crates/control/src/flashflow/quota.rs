//! Limits a deployment to two measurements in any window of one period.
//!
//! Proposal 316 calls the window `FFMeasurementPeriod`.

use std::collections::BTreeMap;

use crate::units::{Span, Time};

/// Number of measurements that a deployment may start within one period.
pub const PER_PERIOD: usize = 2;

/// Start times of measurements, by deployment.
#[derive(Clone, Debug)]
pub struct Quota<Deployment> {
    period: Span,
    started: BTreeMap<Deployment, Vec<Time>>,
}

/// The deployment has used up its measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exhausted {
    /// Time from which the next measurement is allowed.
    pub until: Time,
}

impl<Deployment: Ord> Quota<Deployment> {
    /// A quota without measurements.
    pub fn new(period: Span) -> Quota<Deployment> {
        Quota { period, started: BTreeMap::new() }
    }

    /// Counts a measurement that starts now.
    ///
    /// # Errors
    /// [`Exhausted`] if two measurements started within the period before.
    pub fn start(&mut self, now: Time, deployment: Deployment) -> Result<(), Exhausted> {
        let starts = self.started.entry(deployment).or_default();
        starts.retain(|&start| now.since(start) < self.period);
        if starts.len() >= PER_PERIOD {
            return Err(Exhausted { until: starts[starts.len() - PER_PERIOD] + self.period });
        }
        starts.push(now);
        Ok(())
    }

    /// Removes the deployment's last start, because the relay was never loaded.
    pub fn cancel(&mut self, deployment: &Deployment) {
        if let Some(starts) = self.started.get_mut(deployment) {
            starts.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_third_measurement_waits_for_the_first_to_leave_the_window() {
        let day = Span::from_secs(86_400);
        let mut quota = Quota::new(day);
        let at = |s| Time::ZERO + Span::from_secs(s);
        assert_eq!(quota.start(at(10), 'a'), Ok(()));
        assert_eq!(quota.start(at(50_000), 'a'), Ok(()));
        // The window slides; a new calendar day does not reset it.
        assert_eq!(quota.start(at(86_409), 'a'), Err(Exhausted { until: at(86_410) }));
        assert_eq!(quota.start(at(86_410), 'a'), Ok(()));
        assert_eq!(quota.start(at(86_411), 'a'), Err(Exhausted { until: at(136_400) }));
        assert_eq!(quota.start(at(86_411), 'b'), Ok(()), "another deployment has its own count");
        quota.cancel(&'a');
        assert_eq!(quota.start(at(86_411), 'a'), Ok(()), "the last one came to nothing");
    }
}
