//! The contract between a protocol machine and what drives it.
//!
//! A machine has no clock, socket or thread. Its driver (the simulator, or `net` on real sockets)
//!
//! 1. tells it what happened: an *input* is a method of the machine's own that takes the time, as `cell` of the
//!    overlay's nodes does;
//! 2. after every input, does what [`poll`](Machine::poll) asks until it asks no more: *outputs*;
//! 3. then looks at [`next_timeout`](Machine::next_timeout), and calls [`timeout`](Machine::timeout) once that
//!    time has come. A timeout is an input too: 2 and 3 follow.
//!
//! Times never decrease. A timeout that is called too early does nothing, so a driver need not cancel its timers;
//! one that is called late is as good as it can be. Each call of `timeout` does at least one of the things that are
//! due: if more are, `next_timeout` still says a time that has come.
//!
//! # Examples
//!
//! A machine that says hello every second until it is greeted, and a driver of any machine in simulated time:
//!
//! ```
//! use tidegate_control::units::{Span, Time};
//! use tidegate_control::machine::Machine;
//!
//! struct Greeter {
//!     due: Option<Time>,
//!     said: bool,
//! }
//!
//! impl Greeter {
//!     /// Input: somebody has greeted us.
//!     fn greeted(&mut self, _now: Time) {
//!         self.due = None;
//!     }
//! }
//!
//! impl Machine for Greeter {
//!     type Output = &'static str;
//!     fn poll(&mut self) -> Option<&'static str> {
//!         std::mem::take(&mut self.said).then_some("hello")
//!     }
//!     fn next_timeout(&self) -> Option<Time> {
//!         self.due
//!     }
//!     fn timeout(&mut self, now: Time) {
//!         if self.due.is_some_and(|due| due <= now) {
//!             self.due = Some(now + Span::from_secs(1));
//!             self.said = true;
//!         }
//!     }
//! }
//!
//! fn run<M: Machine>(machine: &mut M, until: Time, act: &mut impl FnMut(&mut M, Time, M::Output)) {
//!     while let Some(now) = machine.next_timeout().filter(|due| *due <= until) {
//!         machine.catch_up(now);
//!         while let Some(output) = machine.poll() {
//!             act(machine, now, output);
//!         }
//!     }
//! }
//!
//! let mut heard = Vec::new();
//! let mut greeter = Greeter { due: Some(Time::ZERO), said: false };
//! run(&mut greeter, Time::ZERO + Span::from_secs(60), &mut |greeter, now, word| {
//!     heard.push((now, word));
//!     if heard.len() == 3 {
//!         greeter.greeted(now);
//!     }
//! });
//! assert_eq!(heard.last(), Some(&(Time::ZERO + Span::from_secs(2), "hello")));
//! assert_eq!(heard.len(), 3);
//! ```

use crate::units::Time;

/// A protocol without clock, socket or thread: see the [module](self).
pub trait Machine {
    /// What it asks of its driver.
    type Output;
    /// The next thing for the driver to do; `None` until the next input.
    fn poll(&mut self) -> Option<Self::Output>;
    /// When [`timeout`](Self::timeout) is due; `None` if nothing is waited for.
    fn next_timeout(&self) -> Option<Time>;
    /// Time has come to `now`.
    fn timeout(&mut self, now: Time);
    /// Does everything that is due at `now`: for drivers that need not look between two things.
    fn catch_up(&mut self, now: Time) {
        while self.next_timeout().is_some_and(|due| due <= now) {
            self.timeout(now);
        }
    }
}
