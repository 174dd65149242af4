//! Ratio of a relay's speed to other relays' speeds, as TorFlow and sbws define it.

/// Per relay the larger of two ratios, each against the mean over its `group`; `None` without a download.
///
/// The first ratio uses the mean of the relay's speeds, the second the mean of its speeds at or above that mean.
pub(super) fn ratios(probes: &[Vec<f64>], group: impl Fn(usize) -> usize) -> Vec<Option<f64>> {
    let mean = |speeds: &mut dyn Iterator<Item = f64>| {
        let (sum, count) = speeds.fold((0.0, 0.0), |(sum, count), speed| (sum + speed, count + 1.0));
        (count > 0.0).then(|| sum / count)
    };
    let two = |speeds: &Vec<f64>| {
        let stream = mean(&mut speeds.iter().copied())?;
        Some((stream, mean(&mut speeds.iter().copied().filter(|speed| *speed >= stream))?))
    };
    let own: Vec<Option<(f64, f64)>> = probes.iter().map(two).collect();
    let against = |relay: usize| {
        let (stream, filtered) = own[relay]?;
        let others =
            || (0..own.len()).filter(|other| group(*other) == group(relay)).filter_map(|other| own[other]);
        let streams = mean(&mut others().map(|(stream, _)| stream))?;
        let filters = mean(&mut others().map(|(_, filtered)| filtered))?;
        (streams > 0.0).then(|| (stream / streams).max(filtered / filters))
    };
    (0..own.len()).map(against).collect()
}
