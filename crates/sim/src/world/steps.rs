//! A run that stops where its owner wants, between two events.

use tidegate_control::random::Seed;
use tidegate_control::units::Time;

use super::event::Event;
use super::state::World;
use crate::observe::Recorder;
use crate::plan::{Plan, System};

/// A run under way. It ends when it is dropped, or never: the plan's duration does not count.
pub struct Steps<'a, R: Recorder> {
    world: World<'a>,
    recorder: R,
    /// What is due next, already taken from the queue.
    next: Option<(Time, Event)>,
}

impl<'a, R: Recorder> Steps<'a, R> {
    /// Nothing has happened yet.
    ///
    /// # Panics
    /// As [`run`](super::run).
    pub fn begin(plan: &'a Plan, system: &'a System, seed: Seed, recorder: R) -> Steps<'a, R> {
        let mut world = World::undivided((plan, system, seed));
        world.watches_packets = R::WATCHES_PACKETS;
        world.begin();
        let next = world.queue.pop();
        let mut steps = Steps { world, recorder, next };
        steps.world.tell(&mut steps.recorder);
        steps
    }

    /// Lets everything happen that is due before `time`.
    pub fn run_to(&mut self, time: Time) {
        while let Some((now, event)) = self.next.take_if(|(due, _)| *due < time) {
            self.world.now = now;
            self.world.handle(event);
            self.world.tell(&mut self.recorder);
            self.next = self.world.queue.pop();
        }
    }

    /// Who watches it.
    pub fn recorder(&mut self) -> &mut R {
        &mut self.recorder
    }
}
