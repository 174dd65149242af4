//! Max-min fair rates by progressive filling, and the quadratic program that is sometimes mistaken for them.
//!
//! All circuits' rates rise together until a resource is full. Its circuits keep their rate, the others
//! continue (Bertsekas and Gallager, *Data Networks*, 6.5.2). The result is exact up to rounding.

use std::fmt;

/// The reason why a fairness problem cannot be solved.
#[derive(Clone, Debug, PartialEq)]
pub enum FairnessError {
    /// A capacity is negative, infinite or not a number.
    Capacity {
        /// The resource's index.
        resource: usize,
        /// Its capacity.
        value: f64,
    },
    /// A circuit does not cross any resource, so its rate is unlimited.
    Unlimited {
        /// The circuit's index.
        circuit: usize,
    },
    /// A circuit names a resource that does not exist.
    NoSuchResource {
        /// The circuit's index.
        circuit: usize,
        /// The index it names.
        resource: usize,
    },
    /// Theorem 3's upper rate is negative, not a number, or so large that rates would be lost in rounding.
    UpperRate(f64),
    /// Theorem 3's program did not converge; the largest residual.
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
                write!(f, "the upper rate R is {value}, not from 0 to 1,000,000 times the largest capacity")
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
    /// Checks capacities and circuits. A circuit is a list of indices into `capacities`.
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

    /// Capacities of the resources.
    pub fn capacities(&self) -> &[f64] {
        &self.capacities
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
            // Rounding may lower the share of a resource that fills at the same time.
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
    /// `upper` is the theorem's arbitrary rate R; the largest capacity is the customary choice. Accurate to
    /// about 1e-10 of the largest of `upper` and the capacities. Costs the cube of the number of resources.
    pub fn theorem3(&self, upper: f64) -> Result<Vec<f64>, FairnessError> {
        let largest = self.capacities.iter().copied().fold(0.0, f64::max);
        if !upper.is_finite() || upper < 0.0 || (largest > 0.0 && upper > 1e6 * largest) {
            return Err(FairnessError::UpperRate(upper));
        }
        let scale = largest.max(upper);
        // Below the accuracy of the result.
        let negligible = 1e-11 * scale;
        let blocked = |path: &[usize]| path.iter().any(|&resource| self.capacities[resource] <= negligible);
        // Circuits over an empty resource are at zero. Without them the program has an interior.
        let open: Vec<usize> =
            (0..self.circuits.len()).filter(|&circuit| !blocked(&self.circuits[circuit])).collect();
        let mut rates = vec![0.0; self.circuits.len()];
        if open.is_empty() || upper == 0.0 {
            return Ok(rates);
        }
        let paths: Vec<&[usize]> = open.iter().map(|&circuit| self.circuits[circuit].as_slice()).collect();
        // Open circuits do not cross empty resources, so any positive capacity will do.
        let positive = |capacity: &f64| if *capacity > negligible { capacity / scale } else { 1.0 };
        let capacities: Vec<f64> = self.capacities.iter().map(positive).collect();
        for (&circuit, rate) in open.iter().zip(
            project(&paths, &capacities, upper / scale, false)
                .or_else(|_| project(&paths, &capacities, upper / scale, true))?,
        ) {
            rates[circuit] = rate * scale;
        }
        Ok(rates)
    }
}

/// The point of `{r >= 0, load(r) <= capacity}` nearest to `(upper, .., upper)`, by a primal-dual interior
/// point method with Mehrotra's corrector; the multipliers of the resources couple the circuits.
/// If `careful`, without the corrector and always towards the centre, which takes longer.
fn project(
    paths: &[&[usize]],
    capacities: &[f64],
    upper: f64,
    careful: bool,
) -> Result<Vec<f64>, FairnessError> {
    const ITERATIONS: usize = 200;
    let (n, m) = (paths.len(), capacities.len());
    let (mut r, mut z, mut s, mut price) = (vec![upper; n], vec![1.0; n], vec![1.0; m], vec![1.0; m]);
    let (mut dr, mut dz, mut ds, mut dprice) = (vec![0.0; n], vec![0.0; n], vec![0.0; m], vec![0.0; m]);
    let (mut worst, mut left) = (f64::INFINITY, f64::INFINITY);
    // Length of the last step. After a short one the next aims nearer to the centre and skips the corrector;
    // otherwise the method can cycle.
    let mut last: f64 = 1.0;
    for _ in 0..ITERATIONS {
        let dual: Vec<f64> = (0..n).map(|i| r[i] - upper + total(paths[i], &price) - z[i]).collect();
        let mut primal: Vec<f64> = (0..m).map(|j| s[j] - capacities[j]).collect();
        for (path, rate) in paths.iter().zip(&r) {
            path.iter().for_each(|&j| primal[j] += rate);
        }
        let mu = gap(&r, &z, &s, &price);
        left = mu;
        worst = dual.iter().chain(&primal).fold(0.0, |worst: f64, value| worst.max(value.abs()));
        if worst <= 1e-11 && mu <= 1e-22 {
            break;
        }
        let weight: Vec<f64> = (0..n).map(|i| 1.0 / (1.0 + z[i] / r[i])).collect();
        let mut schur = schur_complement(paths, &weight, &s, &price);
        cholesky(&mut schur, m);
        let short = careful || last < 0.9;
        let mut step = 1.0;
        // First towards complementarity zero, then with the second-order terms that step would leave.
        for corrector in [false, true] {
            let target = if corrector {
                let moved = |x: &[f64], dx: &[f64]| -> Vec<f64> {
                    x.iter().zip(dx).map(|(x, dx)| x + step * dx).collect()
                };
                let after = gap(&moved(&r, &dr), &moved(&z, &dz), &moved(&s, &ds), &moved(&price, &dprice));
                mu * (after / mu).powi(3).max(if short { 0.3 } else { 0.0 })
            } else {
                0.0
            };
            // The complementarity that remains after the longest step in the first direction.
            let second = if corrector && !short { step * step } else { 0.0 };
            let rz: Vec<f64> = (0..n).map(|i| r[i] * z[i] + second * dr[i] * dz[i] - target).collect();
            let rs: Vec<f64> =
                (0..m).map(|j| s[j] * price[j] + second * ds[j] * dprice[j] - target).collect();
            let slope: Vec<f64> = (0..n).map(|i| -dual[i] - rz[i] / r[i]).collect();
            for j in 0..m {
                dprice[j] = primal[j] - rs[j] / price[j];
            }
            for (i, path) in paths.iter().enumerate() {
                path.iter().for_each(|&j| dprice[j] += weight[i] * slope[i]);
            }
            solve_cholesky(&schur, m, &mut dprice);
            for i in 0..n {
                dr[i] = weight[i] * (slope[i] - total(paths[i], &dprice));
                dz[i] = -(rz[i] + z[i] * dr[i]) / r[i];
            }
            for j in 0..m {
                ds[j] = -(rs[j] + s[j] * dprice[j]) / price[j];
            }
            step = limit(&r, &dr).min(limit(&z, &dz)).min(limit(&s, &ds)).min(limit(&price, &dprice));
            step = (0.995 * step).min(1.0);
        }
        last = step;
        for (x, dx) in [(&mut r, &dr), (&mut z, &dz), (&mut s, &ds), (&mut price, &dprice)] {
            x.iter_mut().zip(dx).for_each(|(x, dx)| *x = (*x + step * dx).max(f64::MIN_POSITIVE));
        }
    }
    let off = worst.max(1e-3 * left.sqrt());
    if off <= 1e-9 { Ok(r) } else { Err(FairnessError::NotConverged(off)) }
}

/// Mean of the products of pairs of primal and dual variables: zero at the optimum.
fn gap(r: &[f64], z: &[f64], s: &[f64], price: &[f64]) -> f64 {
    let sum: f64 = r.iter().zip(z).chain(s.iter().zip(price)).map(|(a, b)| a * b).sum();
    sum / (r.len() + s.len()) as f64
}

/// The matrix of the equations for the prices, after the rates are eliminated.
fn schur_complement(paths: &[&[usize]], weight: &[f64], s: &[f64], price: &[f64]) -> Vec<f64> {
    let m = s.len();
    let mut schur = vec![0.0; m * m];
    for (path, w) in paths.iter().zip(weight) {
        for &j in *path {
            path.iter().for_each(|&k| schur[j * m + k] += w);
        }
    }
    for j in 0..m {
        schur[j * m + j] += s[j] / price[j];
    }
    schur
}

/// How far along `dx` every `x` stays above zero.
fn limit(x: &[f64], dx: &[f64]) -> f64 {
    let ends = x.iter().zip(dx).filter(|(_, dx)| **dx < 0.0).map(|(x, dx)| -x / dx);
    ends.fold(f64::INFINITY, f64::min)
}

fn total(path: &[usize], values: &[f64]) -> f64 {
    path.iter().map(|&j| values[j]).sum()
}

/// Replaces the lower half of a positive semidefinite matrix by its Cholesky factor. A pivot that rounding
/// has eaten, as between two resources with the same circuits, becomes huge: its variable stays put.
fn cholesky(matrix: &mut [f64], m: usize) {
    for j in 0..m {
        let diagonal = matrix[j * m + j];
        for i in j..m {
            let dot: f64 = (0..j).map(|k| matrix[i * m + k] * matrix[j * m + k]).sum();
            let value = matrix[i * m + j] - dot;
            matrix[i * m + j] = match i == j {
                true if value <= 1e-13 * diagonal => 1e64,
                true => value.sqrt(),
                false => value / matrix[j * m + j],
            };
        }
    }
}

fn solve_cholesky(factor: &[f64], m: usize, rhs: &mut [f64]) {
    for i in 0..m {
        let dot: f64 = (0..i).map(|k| factor[i * m + k] * rhs[k]).sum();
        rhs[i] = (rhs[i] - dot) / factor[i * m + i];
    }
    for i in (0..m).rev() {
        let dot: f64 = (i + 1..m).map(|k| factor[k * m + i] * rhs[k]).sum();
        rhs[i] = (rhs[i] - dot) / factor[i * m + i];
    }
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
    fn theorem_3_does_not_go_round_in_circles() {
        let network = sharing(&[42.324, 10.0], &[&[1, 0, 0, 1], &[1, 0, 1, 1], &[0, 0, 0]]);
        let rates = network.theorem3(42.324).unwrap();
        // Both resources are full, and no circuit is at zero.
        close(
            &network.crossings().iter().map(|list| list.iter().map(|&i| rates[i]).sum()).collect::<Vec<_>>(),
            &[42.324, 10.0],
        );
        assert!(rates.iter().all(|rate| *rate > 1.0), "{rates:?}");
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
            prop_assert!(program <= fair + 1e-9 * upper * upper, "{program} over {fair}");
        }
    }
}
