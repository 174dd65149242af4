//! Selection of relays for receiver paths: those that answer and are not congested (section 3.1.4).
//!
//! A hidden receiver does not get acknowledgements. It judges relays by two signs: whether published paths are used, and
//! the rates that relays stamp on packets.

use tidegate_control::paths::Peer;
use tidegate_control::random::Random;
use tidegate_control::units::{Span, Time};

/// Half-life of the counts.
const HALF_LIFE: Span = Span::from_secs(10);
/// Minimum number of paths over a relay before it is judged.
const JUDGED: f64 = 4.0;
/// Minimum use of a relay's paths, as a fraction of the usual use.
const SILENT: f64 = 0.25;
/// Minimum offer of a relay, as a fraction of the median offer.
const CONGESTED: f32 = 0.33;
/// One path in this number is drawn from all relays, to notice recovered relays.
const PROBE: usize = 16;

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// Published paths over this relay, and the used ones among them.
    given: f64,
    heard: f64,
    /// The rate that it offers, bytes/s; zero if unknown.
    offer: f32,
}

/// Statistics of every peer as a relay of receiver paths.
#[derive(Debug)]
pub(crate) struct Selection {
    peers: Vec<Seen>,
    forgotten: Time,
}

impl Selection {
    /// No statistics, for `peers` peers.
    pub(crate) fn new(peers: usize) -> Selection {
        Selection { peers: vec![Seen::default(); peers], forgotten: Time::ZERO }
    }

    /// Counts a path over these relays that was handed out.
    pub(crate) fn given(&mut self, now: Time, relays: &[Peer]) {
        let halves = now.since(self.forgotten).as_secs_f64() / HALF_LIFE.as_secs_f64();
        if halves >= 0.1 {
            let keep = libm::exp2(-halves);
            self.peers
                .iter_mut()
                .for_each(|seen| (seen.given, seen.heard) = (seen.given * keep, seen.heard * keep));
            self.forgotten = now;
        }
        relays.iter().for_each(|relay| self.peers[usize::from(*relay)].given += 1.0);
    }

    /// Counts the first use of a path over these relays.
    pub(crate) fn heard(&mut self, relays: &[Peer]) {
        relays.iter().for_each(|relay| self.peers[usize::from(*relay)].heard += 1.0);
    }

    /// Records the rate that a relay offers, bytes/s.
    pub(crate) fn offered(&mut self, relay: Peer, offer: f32) {
        if offer > 0.0 {
            self.peers[usize::from(relay)].offer = offer;
        }
    }

    /// The relays for new paths: all good ones, or all relays if fewer than `enough` are good.
    pub(crate) fn relays(&self, enough: usize, random: &mut Random) -> Vec<Peer> {
        let all = 0..self.peers.len() as Peer;
        if random.below(PROBE) == 0 {
            return all.collect();
        }
        let (given, heard) = self
            .peers
            .iter()
            .fold((0.0, 0.0), |(given, heard), seen| (given + seen.given, heard + seen.heard));
        let mut offers: Vec<f32> =
            self.peers.iter().map(|seen| seen.offer).filter(|offer| *offer > 0.0).collect();
        let middle = offers.len() / 2;
        let median =
            if offers.is_empty() { 0.0 } else { *offers.select_nth_unstable_by(middle, f32::total_cmp).1 };
        let fit = |peer: &Peer| {
            let seen = self.peers[usize::from(*peer)];
            let silent = seen.given >= JUDGED && seen.heard * given < SILENT * seen.given * heard;
            let congested = seen.offer > 0.0 && seen.offer < CONGESTED * median;
            !silent && !congested
        };
        let chosen: Vec<Peer> = all.clone().filter(fit).collect();
        if chosen.len() < enough { all.collect() } else { chosen }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_control::random::Seed;

    use super::*;

    /// How often each of five peers is chosen.
    fn often(selection: &Selection) -> [usize; 5] {
        let mut random = Seed::root(1).random();
        let mut often = [0; 5];
        for _ in 0..1000 {
            selection.relays(3, &mut random).iter().for_each(|peer| often[usize::from(*peer)] += 1);
        }
        often
    }

    #[test]
    fn silent_and_congested_relays_are_avoided_and_probed() {
        let mut selection = Selection::new(5);
        for round in 0..20 {
            for relays in [[0, 1], [1, 2], [2, 0], [3, 4]] {
                selection.given(Time::ZERO + Span::from_millis(10 * round), &relays);
                if !relays.contains(&3) {
                    selection.heard(&relays);
                }
            }
        }
        selection.heard(&[4; 20]);
        assert!(
            (1..200).contains(&often(&selection)[3]) && often(&selection)[4] == 1000,
            "{:?}",
            often(&selection)
        );
        [0, 1, 2, 4]
            .iter()
            .for_each(|peer| selection.offered(*peer, if *peer == 1 { 3_000.0 } else { 20_000.0 }));
        assert!(often(&selection)[1] < 200 && often(&selection)[2] == 1000);
        selection.heard(&[3; 20]);
        selection.offered(1, 15_000.0);
        assert_eq!(often(&selection), [1000; 5], "both have recovered");
    }
}
