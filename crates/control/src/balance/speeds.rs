//! Means of a relay's speeds, as TorFlow and sbws define them.

/// A relay's speeds in whole bytes per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Speeds {
    /// The mean of all downloads.
    pub stream: f64,
    /// The mean of the downloads at or above that mean.
    pub filtered: f64,
}

/// The means of a relay's downloads; `None` without a download.
pub(super) fn speeds(probes: &[f64]) -> Option<Speeds> {
    let rounded = |speeds: &mut dyn Iterator<Item = f64>| mean(speeds).map(libm::rint);
    let stream = rounded(&mut probes.iter().copied())?;
    // Rounding can lift the mean above every download.
    let filtered = rounded(&mut probes.iter().copied().filter(|speed| *speed >= stream)).unwrap_or(stream);
    Some(Speeds { stream, filtered })
}

/// The mean, or `None` of nothing.
pub(super) fn mean(values: &mut dyn Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    (count > 0.0).then(|| sum / count)
}

/// Limits each weight to a share of the sum, or to an equal part if that is larger, as with a few relays.
pub(super) fn capped(weights: Vec<Option<f64>>, share: f64) -> Vec<Option<f64>> {
    let most = share.max(1.0 / weights.len() as f64) * weights.iter().flatten().sum::<f64>();
    weights.into_iter().map(|weight| weight.map(|weight| weight.min(most))).collect()
}
