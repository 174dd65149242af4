//! The contract between a protocol machine and its driver.
//!
//! A machine does without clock, socket and thread. Its driver (the simulator, or `net` on real sockets)
//!
//! 1. calls its *input* methods with the time, such as `cell` of the overlay's nodes;
//! 2. after every input, acts on all *outputs* of [`poll`](Machine::poll) until it returns `None`;
//! 3. then reads [`next_timeout`](Machine::next_timeout), and calls [`timeout`](Machine::timeout) at that
//!    time. A timeout is an input too: steps 2 and 3 follow.
//!
//! Times never decrease. A call of `timeout` before its time does nothing, so a driver need not cancel its timers;
//! a late call is allowed. Each call handles at least one due action. If others remain, `next_timeout` still returns a
//! time in the past.
//!
//! # Examples
//!
//! A machine that says hello every second until it gets a greeting, and a driver of any machine in simulated time:
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
//!     /// Input: a greeting has arrived.
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
    /// A request to the driver.
    type Output;
    /// The next request to the driver; `None` until the next input.
    fn poll(&mut self) -> Option<Self::Output>;
    /// When [`timeout`](Self::timeout) is due; `None` if no timer runs.
    fn next_timeout(&self) -> Option<Time>;
    /// Handles at least one action that is due at `now`.
    fn timeout(&mut self, now: Time);
    /// Handles all actions that are due at `now`, for drivers that do not poll in between.
    fn catch_up(&mut self, now: Time) {
        while self.next_timeout().is_some_and(|due| due <= now) {
            self.timeout(now);
        }
    }
}
