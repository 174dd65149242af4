//! The attack: Spearman's rank correlation of bytes per bin, every entry flow against every exit flow.

use tidegate_sim::observe::User;

use crate::confirmation::correlation;

/// Bytes per bin.
pub(crate) type Series = Vec<f64>;

/// Flows at the entry and at the exit, with the user that each belongs to.
pub(crate) struct Flows<'a> {
    /// Flows that an observer of clients' links sees.
    pub entries: Vec<(User, &'a [f64])>,
    /// Flows that an observer of servers' links sees; at most one of each user.
    pub exits: Vec<(User, &'a [f64])>,
}

/// How well entry flows were attributed to exit flows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Matched {
    /// Number of entry flows that were attributed, over all windows.
    pub flows: usize,
    /// Number of pairs of flows of different users.
    pub pairs: usize,
    /// Share of entry flows with the highest coefficient at the exit flow of their user.
    pub top: f64,
    /// The same share of an observer that guesses.
    pub chance: f64,
    /// Share of true pairs above the threshold that keeps to the rate of false positives.
    pub true_positives: f64,
    /// Mean coefficient of true pairs.
    pub coefficient: f64,
}

/// Compares all flows in consecutive windows of `window` bins.
///
/// Flows without a byte in a window cannot be observed. An entry flow is left out of a window if its user's exit flow is
/// silent there. `false_positives` is the share of pairs of different users that may lie
/// above the threshold. `None` if no flow is left.
pub(crate) fn attack(flows: &Flows<'_>, window: usize, false_positives: f64) -> Option<Matched> {
    let bins = flows.entries.first()?.1.len();
    let (mut own, mut others) = (Vec::new(), Vec::new());
    let (mut right, mut chance) = (0.0, 0.0);
    for start in (0..(bins + 1).saturating_sub(window)).step_by(window.max(1)) {
        let ranked = |flows: &[(User, &[f64])]| -> Vec<(User, Series)> {
            let parts = flows.iter().map(|(user, series)| (*user, &series[start..start + window]));
            let seen = parts.filter(|(_, part)| part.iter().any(|bytes| *bytes > 0.0));
            seen.map(|(user, part)| (user, ranks(part))).collect()
        };
        let (entries, exits) = (ranked(&flows.entries), ranked(&flows.exits));
        for (user, entry) in &entries {
            let scores: Vec<f64> = exits.iter().map(|(_, exit)| correlation(entry, exit)).collect();
            let Some(at) = exits.iter().position(|(other, _)| other == user) else { continue };
            let best = scores.iter().copied().fold(f64::MIN, f64::max);
            // Between equal coefficients the observer guesses.
            let first = scores.iter().filter(|score| **score == best).count();
            right += if scores[at] == best { 1.0 / first as f64 } else { 0.0 };
            chance += 1.0 / exits.len() as f64;
            own.push(scores[at]);
            others.extend(scores.iter().enumerate().filter(|(exit, _)| *exit != at).map(|(_, score)| *score));
        }
    }
    let n = own.len() as f64;
    let threshold = threshold(&mut others, false_positives);
    (!own.is_empty()).then(|| Matched {
        flows: own.len(),
        pairs: others.len(),
        top: right / n,
        chance: chance / n,
        true_positives: own.iter().filter(|score| **score > threshold).count() as f64 / n,
        coefficient: own.iter().sum::<f64>() / n,
    })
}

/// The lowest threshold above which at most this share of the scores lies. Sorts the scores.
fn threshold(scores: &mut [f64], share: f64) -> f64 {
    scores.sort_by(|a, b| b.total_cmp(a));
    let above = (share * scores.len() as f64).floor() as usize;
    scores.get(above).copied().unwrap_or(f64::MIN)
}

/// Ranks from 1; equal values have the mean of their ranks. The correlation of ranks is Spearman's coefficient.
fn ranks(values: &[f64]) -> Series {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|a, b| values[*a].total_cmp(&values[*b]));
    let mut ranks = vec![0.0; values.len()];
    let mut below = 0;
    for equal in order.chunk_by(|a, b| values[*a] == values[*b]) {
        let mean = below as f64 + (equal.len() as f64 + 1.0) / 2.0;
        equal.iter().for_each(|at| ranks[*at] = mean);
        below += equal.len();
    }
    ranks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spearman(a: &[f64], b: &[f64]) -> f64 {
        correlation(&ranks(a), &ranks(b))
    }

    #[test]
    fn coefficients_are_spearmans_with_and_without_ties() {
        // Ranks 1, 2.5, 2.5, 4 and 1, 4, 2.5, 2.5: both variances are 4.5, the covariance is 2.25.
        assert_eq!(ranks(&[1.0, 2.0, 2.0, 3.0]), [1.0, 2.5, 2.5, 4.0]);
        assert!((spearman(&[1.0, 2.0, 2.0, 3.0], &[10.0, 30.0, 20.0, 20.0]) - 0.5).abs() < 1e-12);
        // Ten pairs without ties; their squared rank differences sum to 194: 1 - 6 * 194 / 990 = -29/165.
        let first = [106.0, 100.0, 86.0, 101.0, 99.0, 103.0, 97.0, 113.0, 112.0, 110.0];
        let second = [7.0, 27.0, 2.0, 50.0, 28.0, 29.0, 20.0, 12.0, 6.0, 17.0];
        assert!((spearman(&first, &second) + 29.0 / 165.0).abs() < 1e-12);
        // Any increasing function of the bytes gives the same coefficient.
        assert!((spearman(&first, &first.map(|value| value * value)) - 1.0).abs() < 1e-12);
        assert_eq!(spearman(&first, &[5.0; 10]), 0.0, "a constant series correlates with nothing");
    }

    #[test]
    fn distinguishable_flows_are_matched_and_identical_ones_by_chance() {
        let up = [1.0, 2.0, 3.0, 4.0];
        let down = [4.0, 3.0, 2.0, 1.0];
        let flat = [2.0, 1.0, 1.0, 2.0];
        let [a, b, c] = [0, 1, 2].map(User);
        let apart = || vec![(a, &up[..]), (b, &down[..]), (c, &flat[..])];
        let matched = attack(&Flows { entries: apart(), exits: apart() }, 4, 0.0).unwrap();
        assert_eq!((matched.flows, matched.pairs), (3, 6));
        assert_eq!((matched.top, matched.true_positives), (1.0, 1.0));
        assert!((matched.coefficient - 1.0).abs() < 1e-12 && (matched.chance - 1.0 / 3.0).abs() < 1e-12);
        let same = || vec![(a, &up[..]), (b, &up[..]), (c, &up[..])];
        let matched = attack(&Flows { entries: same(), exits: same() }, 4, 0.0).unwrap();
        assert!((matched.top - 1.0 / 3.0).abs() < 1e-12);
        assert_eq!(matched.true_positives, 0.0, "every wrong pair scores as high as the right ones");
    }

    #[test]
    fn silent_flows_are_left_out_of_their_window() {
        let [a, b] = [0, 1].map(User);
        let (early, always) = ([1.0, 2.0, 0.0, 0.0], [2.0, 1.0, 1.0, 2.0]);
        let flows =
            Flows { entries: vec![(a, &early), (b, &always)], exits: vec![(a, &early), (b, &always)] };
        let matched = attack(&flows, 2, 0.5).unwrap();
        // Both flows in the first window, one in the second.
        assert_eq!((matched.flows, matched.pairs, matched.top), (3, 2, 1.0));
        assert_eq!(attack(&flows, 5, 0.0), None, "no window fits");
    }

    #[test]
    fn the_threshold_keeps_to_the_rate_of_false_positives() {
        let mut scores = [0.1, 0.9, 0.5, 0.3];
        assert_eq!(threshold(&mut scores, 0.0), 0.9);
        assert_eq!(threshold(&mut scores, 0.25), 0.5, "one of four lies above");
        assert_eq!(threshold(&mut scores, 1.0), f64::MIN);
    }
}
