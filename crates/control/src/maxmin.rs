//! Max-min fair rates by progressive filling, and the quadratic program that is sometimes taken for it.
//!
//! All circuits' rates rise together until a resource is full; its circuits keep their rate, the others
//! rise on (Bertsekas and Gallager, *Data Networks*, 6.5.2). The result is exact up to rounding.

use std::fmt;

/// Why a fairness problem has no answer.
#[derive(Clone, Debug, PartialEq)]
pub enum FairnessError {
    /// A capacity is negative, infinite or not a number.
    Capacity {
        /// The resource's index.
        resource: usize,
        /// Its capacity.
        value: f64,
    },
    /// A circuit crosses no resource, so nothing limits its rate.
    Unlimited {
        /// The circuit's index.
        circuit: usize,
    },
    /// A circuit names a resource that is not there.
    NoSuchResource {
        /// The circuit's index.
        circuit: usize,
        /// The index it names.
        resource: usize,
    },
    /// Theorem 3's upper rate is negative, infinite or not a number.
    UpperRate(f64),
    /// Theorem 3's program was not solved within the sweeps allowed; the largest violation is given.
    NotConverged(f64),
}

impl fmt::Display for FairnessError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FairnessError::Capacity { resource, value } => {
                write!(f, "resource {resource} has capacity {value}; give a finite number, at least 0")
            }
            FairnessError::Unlimited { circuit } => {
                write!(f, "circuit {circuit} crosses no resource; name at least one")
            }
            FairnessError::NoSuchResource { circuit, resource } => {
                write!(f, "circuit {circuit} crosses resource {resource}, which is not there")
            }
            FairnessError::UpperRate(value) => {
                write!(f, "the upper rate R is {value}; give a finite number, at least 0")
            }
            FairnessError::NotConverged(violation) => {
                write!(f, "the quadratic program did not converge; violation {violation:e}")
            }
        }
    }
}

impl std::error::Error for FairnessError {}

/// Circuits that share resources. A circuit that names a resource twice loads it twice.
#[derive(Clone, Debug)]
pub struct Sharing {
    capacities: Vec<f64>,
    circuits: Vec<Vec<usize>>,
}

/// A max-min fair allocation.
#[derive(Clone, Debug, PartialEq)]
pub struct MaxMin {
    /// Rate of each circuit, in the unit of the capacities.
    pub rates: Vec<f64>,
    /// The resource that limits each circuit: it is full, and no circuit on it is faster (eq. 7).
    pub bottlenecks: Vec<usize>,
}

impl Sharing {
    /// Checks capacities and circuits, which are lists of indices into `capacities`.
    pub fn new(capacities: Vec<f64>, circuits: Vec<Vec<usize>>) -> Result<Sharing, FairnessError> {
        if let Some((resource, &value)) =
            capacities.iter().enumerate().find(|(_, value)| !value.is_finite() || **value < 0.0)
        {
            return Err(FairnessError::Capacity { resource, value });
        }
        for (circuit, path) in circuits.iter().enumerate() {
            if path.is_empty() {
                return Err(FairnessError::Unlimited { circuit });
            }
            if let Some(&resource) = path.iter().find(|resource| **resource >= capacities.len()) {
                return Err(FairnessError::NoSuchResource { circuit, resource });
            }
        }
        Ok(Sharing { capacities, circuits })
    }

    /// The circuits that cross each resource, once per crossing.
    fn crossings(&self) -> Vec<Vec<usize>> {
        let mut crossings = vec![Vec::new(); self.capacities.len()];
        for (circuit, path) in self.circuits.iter().enumerate() {
            for &resource in path {
                crossings[resource].push(circuit);
            }
        }
        crossings
    }

    /// Max-min fair rates and each circuit's bottleneck, by progressive filling.
    pub fn max_min(&self) -> MaxMin {
        let crossings = self.crossings();
        let mut rates = vec![0.0; self.circuits.len()];
        let mut bottlenecks = vec![usize::MAX; self.circuits.len()];
        let mut left = self.capacities.clone();
        let mut rising: Vec<usize> = crossings.iter().map(Vec::len).collect();
        let mut level = 0.0f64;
        loop {
            let fullest = (0..left.len())
                .filter(|&resource| rising[resource] > 0)
                .map(|resource| (resource, left[resource] / rising[resource] as f64))
                .min_by(|a, b| a.1.total_cmp(&b.1));
            let Some((resource, share)) = fullest else { return MaxMin { rates, bottlenecks } };
            // Rounding may put the share of a resource that fills at the same time a hair lower.
            level = level.max(share);
            for &circuit in &crossings[resource] {
                if bottlenecks[circuit] != usize::MAX {
                    continue;
                }
                bottlenecks[circuit] = resource;
                rates[circuit] = level;
                for &crossed in &self.circuits[circuit] {
                    left[crossed] = (left[crossed] - level).max(0.0);
                    rising[crossed] -= 1;
                }
            }
        }
    }

    /// Rates that minimise `sum (upper - r_i)^2` over the feasible rates: the program of Theorem 3
    /// (Döpmann et al. 2022, eq. 8), which is max-min fair on one bottleneck but not in general.
    ///
    /// Solved by exact block-coordinate ascent on the multipliers (Hildreth). `upper` is the theorem's
    /// arbitrary rate R; the largest capacity is the customary choice.
    pub fn theorem3(&self, upper: f64) -> Result<Vec<f64>, FairnessError> {
        const SWEEPS: usize = 100_000;
        if !upper.is_finite() || upper < 0.0 {
            return Err(FairnessError::UpperRate(upper));
        }
        // Distinct circuits per resource with how often they cross it.
        let weighted: Vec<Vec<(usize, f64)>> = self.crossings().iter().map(|list| runs(list)).collect();
        let scale = upper.max(f64::MIN_POSITIVE);
        let mut price = vec![0.0; self.capacities.len()];
        // The rate a circuit would like at the present prices, before the bound at zero.
        let mut wish = vec![upper; self.circuits.len()];
        let mut violation = 0.0f64;
        for _ in 0..SWEEPS {
            violation = 0.0;
            for (resource, users) in weighted.iter().enumerate() {
                let old = price[resource];
                for &(circuit, times) in users {
                    wish[circuit] += times * old;
                }
                let new = clearing_price(users, &wish, self.capacities[resource]);
                for &(circuit, times) in users {
                    wish[circuit] -= times * new;
                }
                price[resource] = new;
                violation = violation.max((new - old).abs());
            }
            if violation <= 1e-13 * scale {
                return Ok(wish.iter().map(|rate| rate.max(0.0)).collect());
            }
        }
        Err(FairnessError::NotConverged(violation))
    }
}

/// The smallest price at which the users' load `sum times * max(0, wish - times * price)` fits.
fn clearing_price(users: &[(usize, f64)], wish: &[f64], capacity: f64) -> f64 {
    // A user leaves at price wish/times; between two leavings the load falls linearly.
    let mut leaving: Vec<(f64, f64, f64)> = users
        .iter()
        .filter(|(circuit, _)| wish[*circuit] > 0.0)
        .map(|&(circuit, times)| (wish[circuit] / times, times, wish[circuit]))
        .collect();
    leaving.sort_by(|a, b| b.0.total_cmp(&a.0));
    let (mut load, mut slope) = (0.0, 0.0);
    for (index, &(_, times, wanted)) in leaving.iter().enumerate() {
        load += times * wanted;
        slope += times * times;
        let price = (load - capacity) / slope;
        let next = leaving.get(index + 1).map_or(0.0, |user| user.0);
        if price >= next {
            return price.max(0.0);
        }
    }
    0.0
}

/// Equal neighbours in a sorted list, with their number.
fn runs(sorted: &[usize]) -> Vec<(usize, f64)> {
    sorted.chunk_by(|a, b| a == b).map(|run| (run[0], run.len() as f64)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sharing(capacities: &[f64], circuits: &[&[usize]]) -> Sharing {
        Sharing::new(capacities.to_vec(), circuits.iter().map(|path| path.to_vec()).collect()).unwrap()
    }

    fn close(got: &[f64], want: &[f64]) {
        assert_eq!(got.len(), want.len());
        assert!(got.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-9), "{got:?} is not {want:?}");
    }

    #[test]
    fn one_bottleneck_is_split_evenly() {
        let shared = sharing(&[9.0, 2.0], &[&[0], &[0, 1], &[0]]);
        let fair = shared.max_min();
        close(&fair.rates, &[3.5, 2.0, 3.5]);
        assert_eq!(fair.bottlenecks, [0, 1, 0]);
        close(&shared.theorem3(9.0).unwrap(), &[3.5, 2.0, 3.5]);
    }

    #[test]
    fn theorem_3_differs_on_the_parking_lot() {
        let lot = sharing(&[1.0, 1.0], &[&[0, 1], &[0], &[1]]);
        close(&lot.max_min().rates, &[0.5, 0.5, 0.5]);
        close(&lot.theorem3(1.0).unwrap(), &[1.0 / 3.0, 2.0 / 3.0, 2.0 / 3.0]);
        close(&lot.theorem3(2.0).unwrap(), &[0.0, 1.0, 1.0]);
        close(&lot.theorem3(50.0).unwrap(), &[0.0, 1.0, 1.0]);
    }

    #[test]
    fn degenerate_cases_have_an_answer_or_a_reason() {
        assert_eq!(sharing(&[], &[]).max_min(), MaxMin { rates: vec![], bottlenecks: vec![] });
        let empty = sharing(&[0.0, 5.0], &[&[0, 1], &[1]]);
        assert_eq!(empty.max_min(), MaxMin { rates: vec![0.0, 5.0], bottlenecks: vec![0, 1] });
        close(&empty.theorem3(5.0).unwrap(), &[0.0, 5.0]);
        // Twice over the same resource: it gets half of what it costs.
        close(&sharing(&[3.0], &[&[0, 0], &[0]]).max_min().rates, &[1.0, 1.0]);
        for (capacities, circuits) in [
            (vec![f64::NAN], vec![vec![0]]),
            (vec![-1.0], vec![vec![0]]),
            (vec![f64::INFINITY], vec![vec![0]]),
            (vec![1.0], vec![vec![]]),
            (vec![1.0], vec![vec![1]]),
        ] {
            assert!(Sharing::new(capacities, circuits).is_err());
        }
        assert!(empty.theorem3(f64::NAN).is_err());
    }

    fn networks() -> impl Strategy<Value = Sharing> {
        let capacity = prop_oneof![4 => 0.0..100.0f64, 1 => Just(0.0), 2 => Just(10.0), 1 => 1e-9..1e9f64];
        (1usize..12).prop_flat_map(move |resources| {
            let path = prop::collection::vec(0..resources, 1..5);
            (prop::collection::vec(capacity.clone(), resources), prop::collection::vec(path, 0..40))
                .prop_map(|(capacities, circuits)| Sharing::new(capacities, circuits).unwrap())
        })
    }

    fn loads(network: &Sharing, rates: &[f64]) -> Vec<f64> {
        network.crossings().iter().map(|list| list.iter().map(|&circuit| rates[circuit]).sum()).collect()
    }

    proptest! {
        #[test]
        fn every_circuit_has_a_bottleneck(network in networks()) {
            let fair = network.max_min();
            let loads = loads(&network, &fair.rates);
            let crossings = network.crossings();
            for (load, capacity) in loads.iter().zip(&network.capacities) {
                prop_assert!(*load <= capacity * (1.0 + 1e-12), "{load} over {capacity}");
            }
            for (circuit, &resource) in fair.bottlenecks.iter().enumerate() {
                let capacity = network.capacities[resource];
                prop_assert!(network.circuits[circuit].contains(&resource));
                prop_assert!(loads[resource] >= capacity * (1.0 - 1e-12));
                for &other in &crossings[resource] {
                    prop_assert!(fair.rates[other] <= fair.rates[circuit] * (1.0 + 1e-12));
                }
            }
        }

        #[test]
        fn theorem_3_is_feasible_and_no_worse_in_its_own_measure(network in networks()) {
            let upper = network.capacities.iter().copied().fold(0.0, f64::max);
            let rates = network.theorem3(upper).unwrap();
            for (load, capacity) in loads(&network, &rates).iter().zip(&network.capacities) {
                prop_assert!(*load <= capacity + 1e-9 * (1.0 + upper));
            }
            let cost = |rates: &[f64]| rates.iter().map(|rate| (upper - rate).powi(2)).sum::<f64>();
            let (program, fair) = (cost(&rates), cost(&network.max_min().rates));
            prop_assert!(program <= fair * (1.0 + 1e-9) + 1e-9, "{program} over {fair}");
        }
    }
}
