//! Scales a network down and keeps its shape, as tornettools does.
//!
//! The relays of each class are sorted by weight and divided into as many buckets as relays are wanted. One relay
//! represents each bucket (Jansen, Tracey, Goldberg: Once is Never Enough, USENIX Security 2021).

use tidegate_control::random::Seed;

use crate::consensus::RouterStatus;
use crate::weights::{Class, class_of};

/// Choice of a bucket's representative.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Representative {
    /// The relay in the middle, as in tornettools, so the network is always the same.
    Median,
    /// A random relay: a network per seed, without bias in the mean weight.
    Drawn(Seed),
}

/// Returns the ascending indices of a sample of `relays` of this fraction.
///
/// Only relays that run, are valid and have weight take part. In a class without any weight, as in a network before its
/// first measurement, those without weight take part. Each class keeps its share, and at least one relay.
///
/// # Panics
/// If the fraction is not in `(0, 1]`.
pub fn sample(relays: &[RouterStatus], fraction: f64, representative: Representative) -> Vec<usize> {
    assert!(fraction > 0.0 && fraction <= 1.0, "a fraction between zero and one");
    let mut sampled = Vec::new();
    for (number, class) in (0..).zip(Class::ALL) {
        let takes_part =
            |relay: &RouterStatus| class_of(relay) == class && relay.flags.running() && relay.flags.valid();
        let mut members: Vec<usize> = (0..relays.len()).filter(|index| takes_part(&relays[*index])).collect();
        if members.iter().any(|index| relays[*index].bandwidth > 0) {
            members.retain(|index| relays[*index].bandwidth > 0);
        }
        // The identity breaks ties, so the sample does not depend on the order of the input.
        members.sort_by_key(|index| (relays[*index].bandwidth, relays[*index].identity));
        if members.is_empty() {
            continue;
        }
        let buckets = ((members.len() as f64 * fraction).round() as usize).clamp(1, members.len());
        let mut random = match representative {
            Representative::Median => None,
            Representative::Drawn(seed) => Some(seed.fork("sample").fork_index(number).random()),
        };
        for bucket in 0..buckets {
            let edge = |bucket: usize| bucket * members.len() / buckets;
            let bucket = &members[edge(bucket)..edge(bucket + 1)];
            let at = match &mut random {
                None => bucket.len() / 2,
                Some(random) => random.below(bucket.len()),
            };
            sampled.push(bucket[at]);
        }
    }
    sampled.sort_unstable();
    sampled
}

/// Kolmogorov-Smirnov distance of two samples: the largest difference of their distribution functions.
///
/// # Panics
/// If a sample is empty.
pub fn ks_distance(a: &[f64], b: &[f64]) -> f64 {
    assert!(!a.is_empty() && !b.is_empty(), "a distribution of nothing");
    let (mut a, mut b) = (a.to_vec(), b.to_vec());
    a.sort_by(f64::total_cmp);
    b.sort_by(f64::total_cmp);
    let below =
        |sample: &[f64], value: f64| sample.partition_point(|x| *x <= value) as f64 / sample.len() as f64;
    a.iter().chain(&b).map(|value| (below(&a, *value) - below(&b, *value)).abs()).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::consensus::{Flags, Identity};
    use crate::weights;

    /// Heavy-tailed weights in classes of different sizes.
    fn network() -> Vec<RouterStatus> {
        let mut random = Seed::root(1).random();
        let flags = ["", "Guard", "Exit", "Exit Guard"];
        (0..4000u32)
            .map(|number| {
                let mut identity = [0; 20];
                identity[..4].copy_from_slice(&number.to_be_bytes());
                let class = [0, 0, 1, 1, 1, 2, 3][number as usize % 7];
                RouterStatus {
                    nickname: format!("relay{number}"),
                    identity: Identity(identity),
                    address: Ipv4Addr::from(number << 14),
                    or_port: 9001,
                    flags: Flags::from_names("Fast Running Valid".split(' ').chain(flags[class].split(' '))),
                    version: None,
                    bandwidth: libm::exp(random.normal(7.0, 2.0)) as u32 + 1,
                    unmeasured: false,
                    ports: None,
                    microdescriptor: None,
                }
            })
            .collect()
    }

    fn weights_of(relays: &[RouterStatus], chosen: impl Iterator<Item = usize>, class: Class) -> Vec<f64> {
        chosen.map(|i| &relays[i]).filter(|r| class_of(r) == class).map(|r| f64::from(r.bandwidth)).collect()
    }

    #[test]
    fn classes_without_weight_take_part() {
        let mut relays = network();
        let count = |relays: &[RouterStatus], class| {
            let chosen = sample(relays, 1.0, Representative::Median);
            chosen.into_iter().filter(|index| class_of(&relays[*index]) == class).count()
        };
        let [guards, exits] = [Class::Guard, Class::Exit].map(|class| count(&relays, class));
        relays
            .iter_mut()
            .filter(|relay| class_of(relay) == Class::Guard)
            .for_each(|relay| relay.bandwidth = 0);
        assert_eq!(count(&relays, Class::Guard), guards);
        let exit = relays.iter_mut().find(|relay| class_of(relay) == Class::Exit).unwrap();
        exit.bandwidth = 0;
        assert_eq!(count(&relays, Class::Exit), exits - 1, "others of its class have weight");
    }

    #[test]
    fn classes_and_weights_keep_their_distribution() {
        let relays = network();
        for representative in [Representative::Median, Representative::Drawn(Seed::root(2))] {
            let sampled = sample(&relays, 0.05, representative);
            // Each class is rounded separately.
            assert!(sampled.len().abs_diff(200) <= 2, "{}", sampled.len());
            for class in Class::ALL {
                let all = weights_of(&relays, 0..relays.len(), class);
                let some = weights_of(&relays, sampled.iter().copied(), class);
                let share = some.len() as f64 / sampled.len() as f64 - all.len() as f64 / 4000.0;
                assert!(share.abs() < 0.005, "{class:?}");
                // Representatives of k buckets differ from the whole by at most one bucket.
                let distance = ks_distance(&all, &some);
                assert!(distance <= 1.01 / some.len() as f64, "{class:?}: {distance}");
            }
        }
    }

    #[test]
    fn a_sample_is_a_function_of_its_seed() {
        let relays = network();
        let drawn = |seed| sample(&relays, 0.02, Representative::Drawn(Seed::root(seed)));
        assert_eq!(drawn(1), drawn(1));
        assert_ne!(drawn(1), drawn(2));
        assert_eq!(sample(&relays, 1.0, Representative::Median).len(), 4000);
        assert_eq!(sample(&relays, 1e-9, Representative::Median).len(), 4, "one of each class");
        assert!(sample(&[], 0.5, Representative::Median).is_empty());
    }

    #[test]
    fn distances_are_those_of_kolmogorov_and_smirnov() {
        assert_eq!(ks_distance(&[1.0, 2.0], &[2.0, 1.0]), 0.0);
        assert_eq!(ks_distance(&[1.0, 2.0], &[3.0]), 1.0);
        assert_eq!(ks_distance(&[1.0, 2.0, 3.0, 4.0], &[4.0]), 0.75);
    }

    #[test]
    fn neighbours_exclude_each_other() {
        let relays = network();
        // Four relays share a /16.
        assert_eq!(weights::networks(&relays[..6]), [1, 1, 1, 1, 5, 5]);
        assert_eq!(weights::networks(&relays[3..6]), [0, 2, 2]);
    }

    #[test]
    fn clients_choose_relays_that_run_are_valid_and_fast() {
        let mut relays = network();
        assert!(weights::is_usable(&relays[0]));
        relays[0].flags = Flags::from_names(["Guard", "Running", "Valid"]);
        assert!(!weights::is_usable(&relays[0]), "not fast");
    }
}
