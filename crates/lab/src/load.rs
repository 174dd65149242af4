//! How many users make the wanted utilisation: short runs before the real ones.
//!
//! `[tor] utilisation` says which share of their capacity all relays are to carry. It is the one thing that is fitted,
//! to a figure that Tor publishes (bandwidth used over bandwidth advertised), never to what is then compared.

use tidegate_control::units::Span;

use crate::input::InputError;
use crate::monitor::Monitor;
use crate::results::look_up;
use crate::runs::run_once;
use crate::scenario::Scenario;
use crate::scenario::file::Placed;

/// Simulated time of a run beforehand, at most, and when its measurement begins: streams last up to two minutes, so that
/// load grows for about one and a half.
const DURATION: Span = Span::from_secs(150);
const WARMUP: Span = Span::from_secs(90);

/// Utilisation grows a little less than the load does: the second run starts where the first one leads.
const ROUNDS: u32 = 2;

/// Sets the scenario's `load` so that its first system reaches `[tor] utilisation` on its first seed's network; gives
/// the load, or `None` if the scenario asks for none or the user stopped.
///
/// # Errors
/// If the network cannot be built, or carries nothing however many users there are.
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
            let cause = "`utilisation` cannot be reached: relays carry nothing, or have no limit";
            let cure = "give [[user]] tables `of-tor`, and start them in the first seconds";
            return Err(scenario.source.error(wanted.span(), cause, cure));
        }
        let step = (*wanted / reached).clamp(0.1, 10.0);
        let tor = before.file.tor.as_mut().expect("looked at above").get_mut();
        tor.load *= step;
    }
    let load = before.file.tor.as_ref().map(|tor| tor.load);
    if let (Some(tor), Some(load)) = (&mut scenario.file.tor, load) {
        tor.get_mut().load = load;
    }
    Ok(load)
}
