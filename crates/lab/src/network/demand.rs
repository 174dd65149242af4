//! The traffic that path selection sends to each relay, compared with what the relay can carry.

use tidegate_control::positions::{Class, PositionWeights};

/// A relay as path selection and its link see it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Candidate {
    /// Its class.
    pub class: Class,
    /// Its weight; zero if clients do not use it.
    pub weight: f64,
    /// Its capacity in bytes per second.
    pub capacity: f64,
}

/// Expected demand on the relays of a network.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Demand {
    /// Demand over capacity of each relay; above 1, the relay cannot carry it.
    pub busy: Vec<f64>,
    /// Share of the traffic of the guard, middle and exit position that relays carry.
    pub carried: [f64; 3],
}

impl Demand {
    /// Demand on `relays` if clients request the share `load` of the network's capacity.
    ///
    /// A relay's demand is the sum over the three positions of its chance to be chosen there. The estimate ignores that
    /// the relays of a circuit exclude each other, and that a circuit through a busy relay is slow at its other relays.
    pub(crate) fn of(relays: &[Candidate], positions: &PositionWeights, load: f64) -> Demand {
        let weight = |relay: &Candidate| {
            let of = |position: i64| relay.weight * position as f64;
            [positions.guard(relay.class), positions.middle(relay.class), positions.exit(relay.class)].map(of)
        };
        let totals = relays.iter().map(weight).fold([0.0; 3], |sum, of| [0, 1, 2].map(|at| sum[at] + of[at]));
        let share = |relay: &Candidate| {
            let of = weight(relay);
            [0, 1, 2].map(|at| if totals[at] > 0.0 { of[at] / totals[at] } else { 0.0 })
        };
        let capacity: f64 = relays.iter().map(|relay| relay.capacity).sum();
        let mut carried = [0.0; 3];
        let busy = relays.iter().map(|relay| {
            let share = share(relay);
            let busy = load * capacity * share.iter().sum::<f64>() / 3.0 / relay.capacity;
            for (carried, share) in carried.iter_mut().zip(share) {
                *carried += share / busy.max(1.0);
            }
            busy
        });
        let busy = busy.collect();
        Demand { busy, carried }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relays_with_more_weight_than_capacity_lose_traffic() {
        // One relay per position, each with the whole traffic of its position.
        let relay = |class, capacity| Candidate { class, weight: 1.0, capacity };
        let relays = [relay(Class::Guard, 4.0), relay(Class::Middle, 4.0), relay(Class::Exit, 1.0)];
        let scale = 10_000;
        let alone = PositionWeights { scale, gg: scale, mm: scale, ee: scale, ..PositionWeights::default() };
        let demand = Demand::of(&relays, &alone, 0.5);
        // A third of half of the capacity of 9 is 1.5.
        assert_eq!(demand.busy, [0.375, 0.375, 1.5]);
        assert_eq!(demand.carried, [1.0, 1.0, 1.0 / 1.5]);
        let unused = [relays[0], Candidate { weight: 0.0, ..relays[1] }];
        assert_eq!(Demand::of(&unused, &alone, 0.5).busy[1], 0.0, "clients do not use the second relay");
    }
}
