//! FlashFlow in simulated time: a team measures one or more relays of one machine at the same time.
//!
//! Roles, links, TCP and clients' circuits are those of [`crate::world`]. This module builds the network around them
//! and reads the results. TLS costs nothing here.

mod network;
mod plan;

use std::cell::Cell;
use std::ops::ControlFlow;

use tidegate_control::random::Seed;
use tidegate_control::units::{Span, Time};
use tidegate_proto::flashflow::Reason;
use tidegate_proto::flashflow::cell::CELL;
use tidegate_proto::flashflow::coordinator::Failure;

pub use plan::{BackgroundPlan, GuestsPlan, MeasurerPlan, Plan, RelayPlan, RelayReport, Report, Stopped};

use crate::digest::Digest;
use crate::observe::{Observation, Recorder};
use crate::world;

/// Recorder of a run's results.
struct Record<'a> {
    relays: Vec<RelayReport>,
    /// How long background flows after the last measurement.
    after: Span,
    missing: usize,
    end: &'a Cell<Time>,
}

impl Recorder for Record<'_> {
    fn record(&mut self, now: Time, observation: &Observation) {
        match observation {
            Observation::RelaySample { relay, sample } => {
                if let Some(report) = self.relays.get_mut(relay.0 as usize) {
                    report.forwarded.push((0, sample.cells_processed * CELL as u64));
                }
            }
            Observation::Echoed { relay, bytes } => {
                // The sample of the same second comes first and opens its entry.
                if let Some(second) = self.relays[relay.0 as usize].forwarded.last_mut() {
                    second.0 = *bytes;
                }
            }
            Observation::MeasurementFlows { measurement, flows } => {
                let measured = &mut self.relays[*measurement as usize].measured;
                *(if *flows { &mut measured.0 } else { &mut measured.1 }) = Some(now);
            }
            Observation::Measured { measurement, result } => {
                self.relays[*measurement as usize].result = result.as_ref().clone();
                self.missing -= 1;
                if self.missing == 0 {
                    self.end.set(now + self.after);
                }
            }
            _ => {}
        }
    }
}

/// Runs a plan. `goes_on` is called from time to time and may stop the run.
///
/// # Errors
/// [`Stopped`] if it did.
///
/// # Panics
/// If the plan lacks relays, a relay lacks one share per measurer or has none with sockets, or the background's
/// percentage is not below 100.
pub fn run(plan: &Plan, seed: Seed, goes_on: &dyn Fn(Time) -> bool) -> Result<Report, Stopped> {
    assert!(!plan.relays.is_empty(), "a run measures something");
    for relay in &plan.relays {
        assert_eq!(relay.shares.len(), plan.measurers.len(), "a share for each measurer");
    }
    let unknown = RelayReport {
        result: Err(Failure { reason: Reason::Timeout, by: None }),
        forwarded: Vec::new(),
        measured: (None, None),
    };
    let end = Cell::new(Time::NEVER);
    let (missing, after) = (plan.relays.len(), plan.around.max(plan.coordinator_delay));
    // A measurement that never reports counts as timed out.
    let record = Record { relays: vec![unknown; missing], after, missing, end: &end };
    let mut recorder = (record, Digest::default());
    let mut stopped = false;
    let mut progress = |now| {
        stopped = !goes_on(now);
        if stopped || now > end.get() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let (world, system) = (network::world(plan, seed), network::system(plan));
    let run = world::run(&world, &system, seed, &mut recorder, &mut progress);
    if stopped {
        return Err(Stopped);
    }
    Ok(Report { relays: recorder.0.relays, events: run.events, digest: recorder.1.value() })
}
