//! Kaplan and Meier's estimate of the time to an event, for clients some of which never meet it.

/// Half width of the 95 % interval in standard errors.
const Z: f64 = 1.959_964;

/// The estimated share of clients without the event after each time at which one happened.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Survival {
    /// Number of clients.
    pub(super) n: usize,
    /// Number of events.
    pub(super) events: usize,
    steps: Vec<Step>,
}

/// The estimate from a time on.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Step {
    time: f64,
    survival: f64,
    /// Greenwood's sum: the variance of the survival's logarithm.
    variance: f64,
}

impl Survival {
    /// Estimates from each client's time of the event, or the time until which it was observed without one.
    pub(super) fn of(clients: impl IntoIterator<Item = Result<f64, f64>>) -> Survival {
        let mut times: Vec<(f64, bool)> = (clients.into_iter())
            .map(|client| match client {
                Ok(time) => (time, true),
                Err(until) => (until, false),
            })
            .collect();
        // At the same time, events come before ends of observation.
        times.sort_by(|one, other| one.0.total_cmp(&other.0).then(other.1.cmp(&one.1)));
        let n = times.len();
        let (mut survival, mut variance, mut steps) = (1.0, 0.0, Vec::new());
        let mut index = 0;
        while index < n {
            let time = times[index].0;
            let same = times[index..].iter().take_while(|other| other.0 == time);
            let (mut events, mut all) = (0, 0);
            for (_, event) in same {
                all += 1;
                events += usize::from(*event);
            }
            if events > 0 {
                let (risk, events) = ((n - index) as f64, events as f64);
                survival *= 1.0 - events / risk;
                variance += events / (risk * (risk - events));
                steps.push(Step { time, survival, variance });
            }
            index += all;
        }
        Survival { n, events: times.iter().filter(|(_, event)| *event).count(), steps }
    }

    /// The share of clients that met the event by a time, with the limits of its 95 % interval (log-log).
    pub(super) fn by(&self, time: f64) -> [f64; 3] {
        let after = self.steps.partition_point(|step| step.time <= time);
        let Some(step) = after.checked_sub(1).map(|index| self.steps[index]) else {
            return [0.0, 0.0, self.none()];
        };
        // All clients met the event: Greenwood's variance does not exist.
        if step.survival <= 0.0 {
            return [1.0, 1.0 - self.none(), 1.0];
        }
        let [low, high] = step.limits();
        [1.0 - step.survival, 1.0 - high, 1.0 - low]
    }

    /// The time by which a share of the clients met the event, with the limits of its 95 % interval (Brookmeyer and
    /// Crowley). `None` if fewer did, or if the limit lies beyond the observation.
    pub(super) fn quantile(&self, share: f64) -> [Option<f64>; 3] {
        let first = |reached: &dyn Fn(&Step) -> bool| {
            self.steps.iter().find(|step| reached(step)).map(|step| step.time)
        };
        let left = 1.0 - share;
        [
            first(&|step| step.survival <= left),
            first(&|step| step.limits()[0] <= left),
            first(&|step| step.limits()[1] <= left),
        ]
    }

    /// Upper 95 % limit of the share if no event of `n` happened (rule of three), or of its complement if all happened.
    fn none(&self) -> f64 {
        (3.0 / self.n.max(1) as f64).min(1.0)
    }
}

impl Step {
    /// The limits of the survival, by the interval of its complementary log-log.
    fn limits(&self) -> [f64; 2] {
        if self.survival <= 0.0 {
            return [0.0, 0.0];
        }
        let log = libm::log(self.survival);
        let width = Z * libm::sqrt(self.variance) / log.abs();
        [libm::exp(log * libm::exp(width)), libm::exp(log * libm::exp(-width))]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_estimate_is_that_of_the_textbook() {
        // Freireich's 6-MP group (1963), as in R's survival package: 21 patients in remission, 9 relapses.
        let events = [6.0, 6.0, 6.0, 7.0, 10.0, 13.0, 16.0, 22.0, 23.0];
        let censored = [6.0, 9.0, 10.0, 11.0, 17.0, 19.0, 20.0, 25.0, 32.0, 32.0, 34.0, 35.0];
        let survival = Survival::of(events.map(Ok).into_iter().chain(censored.map(Err)));
        assert_eq!((survival.n, survival.events), (21, 9));
        for (time, expected) in
            [(6.0, 0.857), (7.0, 0.807), (10.0, 0.753), (13.0, 0.690), (16.0, 0.627), (22.0, 0.538)]
        {
            let [share, low, high] = survival.by(time);
            assert!((1.0 - share - expected).abs() < 5e-4, "{time}: {share}");
            assert!(low < share && share < high);
        }
        assert!((1.0 - survival.by(23.5)[0] - 0.448).abs() < 5e-4);
        let [median, low, high] = survival.quantile(0.5);
        assert_eq!((median, low, high), (Some(23.0), Some(13.0), None));
    }

    #[test]
    fn without_censoring_it_is_the_share_of_clients() {
        let survival = Survival::of([1.0, 2.0, 2.0, 4.0].map(Ok));
        assert_eq!([0.5, 1.0, 2.0, 3.9, 4.0].map(|time| survival.by(time)[0]), [0.0, 0.25, 0.75, 0.75, 1.0]);
        assert_eq!(survival.quantile(0.5)[0], Some(2.0));
        let none = Survival::of((0..100).map(|_| Err(10.0)));
        assert_eq!((none.by(10.0), none.quantile(0.5)[0]), ([0.0, 0.0, 0.03], None));
        let all = Survival::of((0..5).map(|_| Ok(1.0)));
        assert_eq!(all.by(2.0), [1.0, 0.4, 1.0]);
    }
}
