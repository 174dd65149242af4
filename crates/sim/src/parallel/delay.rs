//! Delays between peers and their jitter.

use tidegate_control::paths::Peer;
use tidegate_control::random::{Random, Seed};
use tidegate_control::units::Span;

use super::plan::Delays;

/// How long packets take from peer to peer.
#[derive(Clone, Debug)]
pub(crate) struct DelayTable {
    peers: usize,
    /// Mean one-way delay in nanoseconds by pair.
    means: Vec<f32>,
    jitter: f32,
    normals: Normals,
}

impl DelayTable {
    /// Lays out `peers` peers; `seed` draws the jitter.
    pub(crate) fn new(delays: &Delays, peers: usize, jitter: f64, seed: Seed) -> DelayTable {
        let means = match *delays {
            Delays::Constant(delay) => vec![delay.0 as f32; peers * peers],
            Delays::Coordinates { side, per_unit, layout } => {
                let mut draws = Seed::root(layout).fork("positions").random();
                let at: Vec<[f64; 2]> =
                    (0..peers).map(|_| [draws.unit() * side, draws.unit() * side]).collect();
                let distance = |a: usize, b: usize| {
                    libm::hypot(at[a][0] - at[b][0], at[a][1] - at[b][1]) * per_unit.0 as f64
                };
                (0..peers * peers).map(|pair| distance(pair / peers, pair % peers) as f32).collect()
            }
        };
        DelayTable { peers, means, jitter: jitter as f32, normals: Normals::new(seed) }
    }

    /// The mean delay between two peers.
    pub(crate) fn mean(&self, a: Peer, b: Peer) -> Span {
        Span(self.nanos(a, b) as u64)
    }

    fn nanos(&self, a: Peer, b: Peer) -> f32 {
        self.means[usize::from(a) * self.peers + usize::from(b)]
    }

    /// One passage of a link; never less than half its mean, as in `plan::Path::least_delay`.
    pub(crate) fn passage(&mut self, a: Peer, b: Peer) -> Span {
        let mean = self.nanos(a, b);
        Span((mean + mean * self.jitter * self.normals.draw()).max(mean / 2.0) as u64)
    }

    /// One passage of several links in a row: the sum of their normal delays is normal, so one draw does.
    pub(crate) fn passages(&mut self, path: &[Peer]) -> Span {
        let (mut mean, mut squares) = (0.0, 0.0);
        for link in path.windows(2) {
            let nanos = self.nanos(link[0], link[1]);
            mean += nanos;
            squares += nanos * nanos;
        }
        Span((mean + self.jitter * squares.sqrt() * self.normals.draw()).max(mean / 2.0) as u64)
    }
}

/// Normal draws from a table of quantiles: five from each random number.
#[derive(Clone, Debug)]
struct Normals {
    quantiles: Vec<f32>,
    random: Random,
    bits: u64,
    left: u32,
}

/// log2 of the table's size.
const BITS: u32 = 12;

impl Normals {
    fn new(seed: Seed) -> Normals {
        let size = 1 << BITS;
        let quantiles = (0..size).map(|i| normal_quantile((i as f64 + 0.5) / size as f64) as f32).collect();
        Normals { quantiles, random: seed.random(), bits: 0, left: 0 }
    }

    fn draw(&mut self) -> f32 {
        if self.left == 0 {
            self.bits = self.random.bits();
            self.left = u64::BITS / BITS;
        }
        self.left -= 1;
        let index = self.bits as usize % (1 << BITS);
        self.bits >>= BITS;
        self.quantiles[index]
    }
}

/// The standard normal's quantile of `0 < p < 1`, by Newton's method: right of the median the distribution
/// is concave, so that the iteration climbs from zero and cannot overshoot.
pub fn normal_quantile(p: f64) -> f64 {
    if p < 0.5 {
        return -normal_quantile(1.0 - p);
    }
    let mut z = 0.0;
    for _ in 0..40 {
        let above = 0.5 * libm::erfc(z * std::f64::consts::FRAC_1_SQRT_2);
        let density = libm::exp(-z * z / 2.0) / libm::sqrt(std::f64::consts::TAU);
        let step = (above - (1.0 - p)) / density;
        z += step;
        if step.abs() < 1e-12 {
            break;
        }
    }
    z
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_tables() {
        for (p, z) in [(0.5, 0.0), (0.975, 1.959_963_985), (0.025, -1.959_963_985), (0.9999, 3.719_016_485)] {
            assert!((normal_quantile(p) - z).abs() < 1e-8, "{p}");
        }
    }

    #[test]
    fn draws_are_normal() {
        let mut normals = Normals::new(Seed::root(1));
        let draws: Vec<f64> = (0..200_000).map(|_| f64::from(normals.draw())).collect();
        let moment = |k| draws.iter().map(|z| z.powi(k)).sum::<f64>() / draws.len() as f64;
        assert!(moment(1).abs() < 0.01 && (moment(2) - 1.0).abs() < 0.01, "{} {}", moment(1), moment(2));
        assert!(moment(3).abs() < 0.03 && (moment(4) - 3.0).abs() < 0.06, "{} {}", moment(3), moment(4));
        let beyond = draws.iter().filter(|z| **z > 1.6449).count() as f64 / draws.len() as f64;
        assert!((beyond - 0.05).abs() < 0.002);
    }

    #[test]
    fn a_path_has_the_mean_and_deviation_of_its_links() {
        let delays = Delays::Constant(Span::from_millis(100));
        let mut table = DelayTable::new(&delays, 3, 0.1, Seed::root(2));
        let n = 20_000;
        let (mut sum, mut squares) = (0.0, 0.0);
        for _ in 0..n {
            let ms = table.passages(&[0, 1, 2, 0, 1]).as_secs_f64() * 1e3;
            sum += ms;
            squares += (ms - 400.0) * (ms - 400.0);
        }
        assert!((sum / f64::from(n) - 400.0).abs() < 0.5);
        assert!((libm::sqrt(squares / f64::from(n)) - 20.0).abs() < 0.5);
    }
}
