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

/// Most fitting runs. Utilisation grows less than load, so the second run corrects the first; a busy network takes more.
const ROUNDS: u32 = 6;
/// A fit ends with a run that is this near, as a share of the target. The load is corrected by that run, too.
const NEAR: f64 = 0.05;
/// Least growth of utilisation with load, both as logarithms, that a correction assumes. Below it, a network is full.
const LEAST_GROWTH: f64 = 0.2;

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
    let mut last: Option<(f64, f64)> = None;
    let mut nearest: Option<(f64, f64, f64)> = None;
    for round in 1..=ROUNDS {
        let Some(run) = run_once(&before, 0, before.file.seed, monitor)? else { return Ok(None) };
        let reached = look_up(&run.metrics.summary, &["utilisation", "network"]).unwrap_or(0.0);
        if reached <= 0.0 {
            let cause = "`utilisation` cannot be reached: relays carry no traffic, or have no limit";
            let cure = "set `of-tor` in [[user]] tables, and `start` within the first seconds";
            return Err(scenario.source.error(wanted.span(), cause, cure));
        }
        let apart = (reached / *wanted - 1.0).abs();
        let is_near = apart <= NEAR;
        let tor = before.file.tor.as_mut().expect("`utilisation` is a key of [tor]").get_mut();
        if nearest.is_none_or(|(least, ..)| apart < least) {
            nearest = Some((apart, tor.load, reached));
        }
        // The nearer to its capacity a network is, the less its use grows with load.
        let growth =
            last.filter(|_| !is_near).map_or(1.0, |(load, used)| growth([load, tor.load], [used, reached]));
        let is_full = growth < LEAST_GROWTH && reached < *wanted;
        if is_full || round == ROUNDS && !is_near {
            let (_, load, reached) = nearest.expect("a run has ended");
            let wanted = *wanted;
            monitor.notice(&format!(
                "`utilisation` = {wanted} is not reached: relays carry {reached:.2} at a load of {load:.3}, which the run has"
            ));
            tor.load = load;
            break;
        }
        last = Some((tor.load, reached));
        // Limits the correction if the first run was nearly idle, and the work if a network is nearly full.
        let most = if round > 1 { 2.0 } else { 10.0 };
        tor.load *= libm::pow(*wanted / reached, growth.max(LEAST_GROWTH).recip()).clamp(0.1, most);
        if round > 1 && is_near {
            break;
        }
    }
    let load = before.file.tor.as_ref().map(|tor| tor.load);
    if let (Some(tor), Some(load)) = (&mut scenario.file.tor, load) {
        tor.get_mut().load = load;
    }
    Ok(load)
}

/// Growth of utilisation with load between two runs, both as logarithms, at most 1.
fn growth(loads: [f64; 2], used: [f64; 2]) -> f64 {
    let growth = libm::log(used[1] / used[0]) / libm::log(loads[1] / loads[0]);
    if growth.is_finite() { growth.min(1.0) } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::Mutex;

    use super::*;
    use crate::input::SourceFile;

    /// Keeps notices.
    #[derive(Default)]
    struct Notices(Mutex<Vec<String>>);

    impl Monitor for Notices {
        fn notice(&self, text: &str) {
            self.0.lock().unwrap().push(text.into());
        }
    }

    /// Fits the load of a small network. Returns it and the notices.
    fn settled(utilisation: f64, load: f64) -> (f64, Vec<String>) {
        let text = format!(
            "duration = '20 s'\nwarmup = '8 s'\ntrace-one-in = 0\n[[system]]\nname = 'tor'\nof-consensus = true\n\
             [tor]\nrelays = 8\nbandwidth-factor = 0.05\nutilisation = {utilisation}\nload = {load}\n\
             [[user]]\nname = 'web'\nof-tor = 133_000\ntraffic = 'web'\nstart = ['0 s', '6 s']\n"
        );
        let source = SourceFile { file: "small.toml".into(), text };
        let mut scenario = Scenario::parse(source, PathBuf::new(), &[]).unwrap();
        let notices = Notices::default();
        let load = settle(&mut scenario, &notices).unwrap().unwrap();
        assert_eq!(scenario.file.tor.as_ref().unwrap().load, load);
        (load, notices.0.into_inner().unwrap())
    }

    #[test]
    fn the_load_that_a_scenario_begins_with_matters_little() {
        let [(few, _), (many, notices)] = [settled(0.4, 0.4), settled(0.4, 4.0)];
        assert!(notices.is_empty() && (0.85..1.18).contains(&(many / few)), "{few}, {many}: {notices:?}");
    }

    #[test]
    fn a_utilisation_that_no_load_reaches_is_said() {
        let (load, notices) = settled(0.99, 1.0);
        assert!(
            load >= 1.0 && notices.len() == 1 && notices[0].contains("= 0.99 is not reached"),
            "{notices:?}"
        );
    }
}
