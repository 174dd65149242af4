//! A run that its caller advances step by step and can steer between two events.

use tidegate_control::paths::{Controller, ControllerParameters};
use tidegate_control::random::Seed;
use tidegate_control::units::Time;

use super::plan::{Plan, PlanError};
use super::world::World;
use crate::event_loop::run_before;

/// A run that its caller advances; the caller decides for peer 0.
pub struct Steps<'a> {
    world: World<'a>,
}

impl<'a> Steps<'a> {
    /// Prepares a run at time zero. Peer 0 obeys `own`, all others the controller of `parameters`. The plan's duration
    /// does not count.
    ///
    /// # Errors
    /// [`PlanError`] as [`run`], and for the perfect controller, which decides for all.
    pub fn begin(
        plan: &'a Plan,
        parameters: &ControllerParameters,
        seed: Seed,
        own: Box<dyn Controller>,
    ) -> Result<Steps<'a>, PlanError> {
        plan.check()?;
        if parameters.controller(plan.peers.len(), seed).is_none() {
            return Err(PlanError::Central);
        }
        Ok(Steps { world: World::new(plan, parameters, seed, Some(own)) })
    }

    /// Handles all events that are due before `time`, with the rates that peer 0's controller has now.
    pub fn run_to(&mut self, time: Time) {
        if let Some(sender) = &mut self.world.sources[0].sender {
            sender.rates_changed();
        }
        let _ = run_before(&mut self.world, time);
    }
}
