//! A run that its caller advances step by step and can steer between two events.

use tidegate_control::paths::Controller;
use tidegate_control::paths::parameters::ControllerParameters;
use tidegate_control::random::Seed;
use tidegate_control::units::Time;

use super::plan::{Plan, PlanError};
use super::world::{Event, World};

/// A run that its caller advances; the caller decides for peer 0.
pub struct Steps<'a> {
    world: World<'a>,
    /// The next event, already taken from the queue.
    next: Option<(Time, Event)>,
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
        let mut world = World::new(plan, parameters, seed, Some(own));
        let next = world.queue.pop();
        Ok(Steps { world, next })
    }

    /// Handles all events that are due before `time`, with the rates that peer 0's controller has now.
    pub fn run_to(&mut self, time: Time) {
        if let Some(sender) = &mut self.world.sources[0].sender {
            sender.rates_changed();
        }
        while let Some((now, event)) = self.next.take_if(|(due, _)| *due < time) {
            self.world.handle(now, event);
            self.next = self.world.queue.pop();
        }
    }
}
