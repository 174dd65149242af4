//! Fits [tor] `load` to the wanted utilisation, by short runs before the real ones.
//!
//! `[tor] utilisation` is the target share of all relays' capacity in use. It is the only fitted value. The target is
//! a figure that Tor publishes (bandwidth used over bandwidth advertised), never a result that is then compared.

use tidegate_control::units::Span;

use crate::input::InputError;
use crate::monitor::Monitor;
use crate::results::look_up;
use crate::runs::run_once;
use crate::scenario::Scenario;
use crate::scenario::file::Placed;

/// Longest simulated time of a fitting run, and its warm-up. Streams last up to two minutes, so load grows for about
/// 90 s.
const DURATION: Span = Span::from_secs(150);
const WARMUP: Span = Span::from_secs(90);

/// Fitting runs. Utilisation grows slightly less than load, so the second run corrects the first.
const ROUNDS: u32 = 2;

/// Sets the scenario's `load` so that its first system reaches `[tor] utilisation` on the first seed's network.
///
/// Returns the load, or `None` if the scenario sets no `utilisation` or the user stopped.
///
/// # Errors
/// If the network cannot be built, or its relays carry no traffic.
pub fn settle(scenario: &mut Scenario, monitor: &dyn Monitor) -> Result<Option<f64>, InputError> {
    let Some(wanted) = scenario.file.tor.as_ref().and_then(|tor| tor.utilisation.clone()) else {
        return Ok(None);
    };
    let mut before = scenario.clone();
    let duration = scenario.duration().min(DURATION);
    before.file.duration = duration;
    before.file.warmup = Placed::nowhere(WARMUP.min(duration / 5 * 3));
    for _ in 0..ROUNDS {
        let Some(run) = run_once(&before, 0, before.file.seed, monitor)? else { return Ok(None) };
        let reached = look_up(&run.metrics.summary, &["utilisation", "network"]).unwrap_or(0.0);
        if reached <= 0.0 {
            let cause = "`utilisation` cannot be reached: relays carry no traffic, or have no limit";
            let cure = "set `of-tor` in [[user]] tables, and `start` within the first seconds";
            return Err(scenario.source.error(wanted.span(), cause, cure));
        }
        // Limits the correction if the first run was nearly idle.
        let step = (*wanted / reached).clamp(0.1, 10.0);
        let tor = before.file.tor.as_mut().expect("`utilisation` is a key of [tor]").get_mut();
        tor.load *= step;
    }
    let load = before.file.tor.as_ref().map(|tor| tor.load);
    if let (Some(tor), Some(load)) = (&mut scenario.file.tor, load) {
        tor.get_mut().load = load;
    }
    Ok(load)
}
