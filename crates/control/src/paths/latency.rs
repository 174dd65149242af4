//! Round-trip estimates per link and the acknowledgement timeout (thesis section 4.2.1).

use super::Peer;

/// A source's round-trip estimates for the links between peers.
#[derive(Clone, Debug)]
pub struct Latencies {
    peers: usize,
    gamma: f32,
    factor: f32,
    /// L and V of equations 4.3 and 4.4 in seconds per unordered pair; L is negative until measured.
    links: Vec<[f32; 2]>,
    /// The same for the receiver path: from the last relay of the sender path to the receiver and back.
    beyond: [f32; 2],
}

/// L of an unmeasured link, seconds.
const UNKNOWN: f32 = 1.0;
/// L of an unmeasured receiver path, seconds: three links.
const UNKNOWN_BEYOND: f32 = 3.0;

impl Latencies {
    /// Estimates without a measurement. `gamma` is the weight of a new sample (4.3, 4.4), `factor` is alpha of 4.5.
    pub(crate) fn new(peers: usize, gamma: f64, factor: f64) -> Latencies {
        Latencies {
            peers,
            gamma: gamma as f32,
            factor: factor as f32,
            links: vec![[-1.0, 0.0]; peers * peers],
            beyond: [-1.0, 0.0],
        }
    }

    /// gamma of 4.3 and 4.4.
    pub fn gamma(&self) -> f64 {
        f64::from(self.gamma)
    }

    /// alpha of 4.5 and 4.6.
    pub fn factor(&self) -> f64 {
        f64::from(self.factor)
    }

    fn slot(&self, a: Peer, b: Peer) -> usize {
        usize::from(a.min(b)) * self.peers + usize::from(a.max(b))
    }

    /// L of equation 4.3 for the link between `a` and `b`, seconds.
    pub fn round_trip(&self, a: Peer, b: Peer) -> f64 {
        let mean = self.links[self.slot(a, b)][0];
        f64::from(if mean < 0.0 { UNKNOWN } else { mean })
    }

    /// T of equation 4.6 in seconds: L + alpha V summed over all links of `path` (source, relays,
    /// destination). The printed equation skips the link between the first two relays; all are summed here.
    pub(crate) fn timeout(&self, path: &[Peer]) -> f64 {
        let links = path.windows(2).map(|link| {
            let [mean, deviation] = self.links[self.slot(link[0], link[1])];
            if mean < 0.0 { UNKNOWN } else { mean + self.factor * deviation }
        });
        f64::from(links.sum::<f32>())
    }

    /// Adds a measured round trip over `path`: each link gets an equal part, l = RTT / (h + 1). The first
    /// sample sets V = l / 2.
    pub(crate) fn measured(&mut self, path: &[Peer], seconds: f64) {
        let sample = (seconds / (path.len() - 1) as f64) as f32;
        for link in path.windows(2) {
            let slot = self.slot(link[0], link[1]);
            smooth(&mut self.links[slot], self.gamma, sample);
        }
    }

    /// Adds a measured round trip beyond the sender path: from its last relay to the receiver and back (section 3.1.4).
    pub(crate) fn measured_beyond(&mut self, seconds: f64) {
        smooth(&mut self.beyond, self.gamma, seconds as f32);
    }

    /// L and T beyond the sender path, seconds.
    pub fn beyond(&self) -> (f64, f64) {
        let [mean, deviation] = self.beyond;
        match mean < 0.0 {
            true => (f64::from(UNKNOWN_BEYOND), f64::from(UNKNOWN_BEYOND)),
            false => (f64::from(mean), f64::from(mean + self.factor * deviation)),
        }
    }
}

/// Equations 4.3 and 4.4; the first sample sets V to half of it.
fn smooth([mean, deviation]: &mut [f32; 2], gamma: f32, sample: f32) {
    if *mean < 0.0 {
        (*mean, *deviation) = (sample, sample / 2.0);
    } else {
        *deviation += gamma * ((sample - *mean).abs() - *deviation);
        *mean += gamma * (sample - *mean);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimates_follow_equations_4_3_to_4_6() {
        let mut links = Latencies::new(4, 0.1, 4.0);
        assert_eq!(links.timeout(&[0, 1, 2, 3]), 3.0);
        links.measured(&[0, 1, 2, 3], 0.3);
        // L = 0.1 and V = 0.05 on each of three links: T = 3 (0.1 + 4 x 0.05).
        assert!((links.timeout(&[0, 1, 2, 3]) - 0.9).abs() < 1e-6);
        assert!((links.timeout(&[3, 2, 1, 0]) - 0.9).abs() < 1e-6);
        links.measured(&[0, 1], 0.2);
        // V += 0.1 (0.1 - 0.05), then L += 0.1 (0.2 - 0.1).
        assert!((links.round_trip(1, 0) - 0.11).abs() < 1e-6);
        assert!((links.timeout(&[0, 1]) - (0.11 + 4.0 * 0.055)).abs() < 1e-6);
        assert_eq!(links.beyond(), (3.0, 3.0));
        links.measured_beyond(0.2);
        let (mean, timeout) = links.beyond();
        assert!((mean - 0.2).abs() < 1e-6 && (timeout - 0.6).abs() < 1e-6);
    }
}
