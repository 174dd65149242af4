//! Errors of relays' capacities and weights over years of Tor's archives (FlashFlow, section 3 and appendix A).
//!
//! `collect` streams descriptors, extra-infos and consensuses into a working folder and can resume. `errors`
//! computes the errors hour by hour; [`tables`] and [`drawings`] present them.
//!
//! Memory is bounded by one year of data, about 16 bytes per descriptor and 16 bytes per relay and hour, for archives
//! of any length.

mod collect;
pub mod drawings;
mod errors;
pub(crate) mod runner;
mod store;
pub mod tables;

use crate::input::InputError;
use crate::monitor::Monitor;
pub use collect::{Collected, Counts};
pub use errors::{Analysis, NetworkErrors, Period, weight_error};

/// The paper's periods: a day, a week, a month, a year.
pub const PERIODS: [Period; 4] = [
    Period { name: "day", seconds: 86_400 },
    Period { name: "week", seconds: 7 * 86_400 },
    Period { name: "month", seconds: 30 * 86_400 },
    Period { name: "year", seconds: 365 * 86_400 },
];

/// Analyses all collected data in order of time.
///
/// # Errors
/// If the working folder cannot be read. `Ok(None)` if the user stopped it.
pub fn analyse(collected: &Collected, monitor: &dyn Monitor) -> Result<Option<Analysis>, InputError> {
    let mut analysis = Analysis::new(&PERIODS, collected.relays().len());
    let mut published = collected.descriptors()?.peekable();
    let hours = collected.consensuses();
    for (index, hour) in hours.iter().enumerate() {
        if monitor.stopped() {
            return Ok(None);
        }
        while let Some(said) =
            published.next_if(|said| said.as_ref().is_ok_and(|said| said.time <= hour.time))
        {
            analysis.advertised(&said?);
        }
        if let Some(Err(error)) = published.next_if(Result::is_err) {
            return Err(error);
        }
        analysis.hour(hour.time, &collected.weights(hour)?);
        if index % 24 == 0 {
            monitor.progress("errors", "hour by hour", index as f64 / hours.len() as f64);
        }
    }
    Ok(Some(analysis))
}
