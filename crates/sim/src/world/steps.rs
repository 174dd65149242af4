//! A run that its caller advances.

use tidegate_control::random::Seed;
use tidegate_control::units::Time;

use super::event_loop::{Recorded, World};
use crate::event_loop::run_before;
use crate::observe::Recorder;
use crate::plan::{Plan, System};

/// A run that its caller advances. It lasts until it is dropped; the plan's duration is ignored.
pub struct Steps<'a, R: Recorder> {
    world: World<'a>,
    recorder: R,
}

impl<'a, R: Recorder> Steps<'a, R> {
    /// Prepares a run at time zero.
    ///
    /// # Panics
    /// As [`run`](super::run).
    pub fn begin(plan: &'a Plan, system: &'a System, seed: Seed, recorder: R) -> Steps<'a, R> {
        let mut world = World::undivided((plan, system, seed));
        world.net.ctx.watches_packets = R::WATCHES_PACKETS;
        world.begin();
        let mut steps = Steps { world, recorder };
        steps.world.net.ctx.tell(&mut steps.recorder);
        steps
    }

    /// Handles all events that are due before `time`.
    pub fn run_to(&mut self, time: Time) {
        let _ = run_before(&mut Recorded { world: &mut self.world, recorder: &mut self.recorder }, time);
    }

    /// The recorder of the run.
    pub fn recorder(&mut self) -> &mut R {
        &mut self.recorder
    }
}
