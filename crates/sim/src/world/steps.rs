//! A run that its caller advances.

use tidegate_control::random::Seed;
use tidegate_control::units::Time;

use super::event::Event;
use super::event_loop::World;
use crate::observe::Recorder;
use crate::plan::{Plan, System};

/// A run that its caller advances. It lasts until it is dropped; the plan's duration is ignored.
pub struct Steps<'a, R: Recorder> {
    world: World<'a>,
    recorder: R,
    /// The next event, already taken from the queue.
    next: Option<(Time, Event)>,
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
        let next = world.net.ctx.queue.pop();
        let mut steps = Steps { world, recorder, next };
        steps.world.net.ctx.tell(&mut steps.recorder);
        steps
    }

    /// Handles all events that are due before `time`.
    pub fn run_to(&mut self, time: Time) {
        while let Some((now, event)) = self.next.take_if(|(due, _)| *due < time) {
            self.world.net.ctx.now = now;
            self.world.handle(event);
            self.world.net.ctx.tell(&mut self.recorder);
            self.next = self.world.net.ctx.queue.pop();
        }
    }

    /// The recorder of the run.
    pub fn recorder(&mut self) -> &mut R {
        &mut self.recorder
    }
}
