//! Estimates of the latencies between peers, in memory linear in their number.
//!
//! The thesis samples every pair, which takes minutes for 200 viewers (section 7.4.1). Here each measurement also
//! moves two points in space (Vivaldi: Dabek, Cox, Kaashoek, Morris, SIGCOMM 2004), which gives an estimate for
//! unmeasured pairs. With few viewers, measured pairs also keep their own estimate.

use tidegate_control::random::Random;

use crate::Peer;

/// Up to this number of peers, every pair has its own estimate.
const PAIRS: usize = 512;
/// Weight of a new sample of a pair: gamma of the thesis's equation 4.3.
const GAMMA: f32 = 0.1;
/// Vivaldi's c_c: how far one sample moves a point.
const STEP: f32 = 0.25;
/// Vivaldi's c_e: how fast errors are forgotten.
const FORGET: f32 = 0.25;
/// Estimate for a peer without measurements, microseconds.
const UNKNOWN: f32 = 50_000.0;

/// Estimates of one-way latencies.
#[derive(Clone, Debug)]
pub(crate) struct Latencies {
    points: Vec<Point>,
    /// Microseconds by pair, negative if unmeasured; empty above [`PAIRS`] peers.
    pairs: Vec<f32>,
}

/// A point in Vivaldi's three-dimensional space.
#[derive(Clone, Copy, Debug)]
struct Point {
    at: [f32; 3],
    /// Relative error of this point; 1 means unknown.
    error: f32,
}

const NOWHERE: Point = Point { at: [0.0; 3], error: 1.0 };

impl Latencies {
    /// No measurements of `peers` peers, including the server.
    pub(crate) fn new(peers: usize) -> Latencies {
        let pairs = if peers <= PAIRS { vec![-1.0; peers * peers] } else { Vec::new() };
        Latencies { points: vec![NOWHERE; peers], pairs }
    }

    /// Forgets a peer before its number is reused.
    pub(crate) fn forget(&mut self, peer: Peer) {
        self.points[usize::from(peer)] = NOWHERE;
        let peers = self.points.len();
        if !self.pairs.is_empty() {
            for other in 0..peers {
                let slot = self.slot(peer, other as Peer);
                self.pairs[slot] = -1.0;
            }
        }
    }

    fn slot(&self, a: Peer, b: Peer) -> usize {
        usize::from(a.min(b)) * self.points.len() + usize::from(a.max(b))
    }

    /// The estimated one-way latency, microseconds.
    pub(crate) fn between(&self, a: Peer, b: Peer) -> u32 {
        if !self.pairs.is_empty() {
            let known = self.pairs[self.slot(a, b)];
            if known >= 0.0 {
                return known as u32;
            }
        }
        self.predicted(a, b) as u32
    }

    fn predicted(&self, a: Peer, b: Peer) -> f32 {
        let (a, b) = (&self.points[usize::from(a)], &self.points[usize::from(b)]);
        if a.error >= 1.0 || b.error >= 1.0 {
            return UNKNOWN;
        }
        distance(a.at, b.at).max(1.0)
    }

    /// Adds a sample of a one-way latency, microseconds. `random` separates points at the same place.
    pub(crate) fn measured(&mut self, a: Peer, b: Peer, sample: f64, random: &mut Random) {
        if a == b {
            return;
        }
        let sample = (sample as f32).clamp(1.0, 10_000_000.0);
        if !self.pairs.is_empty() {
            let slot = self.slot(a, b);
            let known = &mut self.pairs[slot];
            *known = if *known < 0.0 { sample } else { *known + GAMMA * (sample - *known) };
        }
        let (from, to) = (self.points[usize::from(a)], self.points[usize::from(b)]);
        self.points[usize::from(a)] = moved(from, to, sample, random);
        self.points[usize::from(b)] = moved(to, from, sample, random);
    }

    /// A packet took `sample` microseconds over all links of `path` together: each link's estimate is corrected
    /// by its share of what the sum was wrong by.
    pub(crate) fn measured_along(&mut self, path: &[Peer], sample: f64, random: &mut Random) {
        let links = path.windows(2);
        let sum: f64 = links.clone().map(|link| f64::from(self.between(link[0], link[1]))).sum();
        let ratio = if sum > 0.0 { sample / sum } else { 1.0 };
        for link in links {
            let estimate = f64::from(self.between(link[0], link[1]));
            self.measured(link[0], link[1], estimate * ratio, random);
        }
    }
}

fn distance(a: [f32; 3], b: [f32; 3]) -> f32 {
    a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum::<f32>().sqrt()
}

/// Where `point` goes by one sample of its latency to `other`.
fn moved(point: Point, other: Point, sample: f32, random: &mut Random) -> Point {
    let apart = distance(point.at, other.at);
    let weight = point.error / (point.error + other.error).max(1e-6);
    let wrong = ((apart - sample).abs() / sample).min(1.0);
    let error = (wrong * FORGET * weight + point.error * (1.0 - FORGET * weight)).clamp(0.01, 0.999);
    let force = STEP * weight * (sample - apart);
    // Points on each other part in a random direction.
    let away = std::array::from_fn(|axis| match apart > 1.0 {
        true => (point.at[axis] - other.at[axis]) / apart,
        false => random.uniform(-0.58, 0.58) as f32,
    });
    let at = std::array::from_fn(|axis: usize| {
        let away: [f32; 3] = away;
        point.at[axis] + force * away[axis]
    });
    Point { at, error }
}

#[cfg(test)]
mod tests {
    use tidegate_control::random::Seed;

    use super::*;

    /// Median relative error for peers in a plane, after samples of random pairs.
    fn median_error(peers: usize, samples: usize) -> f64 {
        let mut random = Seed::root(3).random();
        let places: Vec<[f64; 2]> =
            (0..peers).map(|_| [random.uniform(0.0, 6e4), random.uniform(0.0, 6e4)]).collect();
        let truth = |a: usize, b: usize| {
            5e3 + ((places[a][0] - places[b][0]).powi(2) + (places[a][1] - places[b][1]).powi(2)).sqrt()
        };
        let mut latencies = Latencies::new(peers);
        for _ in 0..samples {
            let (a, b) = (random.below(peers), random.below(peers));
            if a != b {
                latencies.measured(a as Peer, b as Peer, truth(a, b), &mut random);
            }
        }
        let mut errors: Vec<f64> = (0..peers)
            .flat_map(|a| (0..a).map(move |b| (a, b)))
            .map(|(a, b)| (f64::from(latencies.between(a as Peer, b as Peer)) / truth(a, b) - 1.0).abs())
            .collect();
        errors.sort_by(f64::total_cmp);
        errors[errors.len() / 2]
    }

    #[test]
    fn few_samples_predict_unmeasured_pairs() {
        // 40 samples a peer, 179,700 pairs.
        assert!(median_error(600, 24_000) < 0.3, "{}", median_error(600, 24_000));
    }

    #[test]
    fn measured_pairs_are_exact_until_their_peer_leaves() {
        let mut random = Seed::root(1).random();
        let mut latencies = Latencies::new(4);
        assert_eq!(latencies.between(1, 2), 50_000);
        (0..50).for_each(|_| latencies.measured(1, 2, 20_000.0, &mut random));
        assert_eq!(latencies.between(2, 1), 20_000);
        (0..200).for_each(|_| latencies.measured_along(&[1, 2, 3], 50_000.0, &mut random));
        let sum = latencies.between(1, 2) + latencies.between(2, 3);
        assert!((49_000..51_000).contains(&sum), "{sum}");
        latencies.forget(2);
        assert_eq!(latencies.between(1, 2), 50_000);
    }
}
