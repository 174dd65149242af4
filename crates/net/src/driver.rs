//! Drives sans-IO machines with the monotonic clock.
//!
//! `Driver` owns one machine: it runs timeouts that are due, and passes every output to a `Handler` before it
//! returns. A role's event loop waits in `Driver::wait`. In a `SharedDriver`, several tasks of one thread give the
//! machine input, and a timer task runs its timeouts.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use tidegate_control::machine::Machine;
use tidegate_control::units::Time;

use crate::clock;

/// Carries out a machine's outputs.
pub(crate) trait Handler<M: Machine> {
    /// Carries out one output. It may give the machine further input.
    fn handle(&mut self, machine: &mut M, now: Time, output: M::Output);

    /// Runs a timeout that is due. A role that measures the machine's work overrides this.
    fn timeout(&mut self, machine: &mut M, now: Time) {
        machine.timeout(now);
    }
}

/// One machine on the monotonic clock.
pub(crate) struct Driver<M> {
    /// The machine. After inputs that bypass [`Driver::input`], call [`Driver::drain`].
    pub machine: M,
}

impl<M: Machine> Driver<M> {
    /// Takes over a machine.
    pub(crate) fn new(machine: M) -> Driver<M> {
        Driver { machine }
    }

    /// Gives the machine an input, then handles its outputs.
    pub(crate) fn input<T>(
        &mut self,
        handler: &mut impl Handler<M>,
        act: impl FnOnce(&mut M, Time) -> T,
    ) -> T {
        let now = clock::now();
        let result = act(&mut self.machine, now);
        self.drain(handler, now);
        result
    }

    /// Handles all outputs.
    pub(crate) fn drain(&mut self, handler: &mut impl Handler<M>, now: Time) {
        while let Some(output) = self.machine.poll() {
            handler.handle(&mut self.machine, now, output);
        }
    }

    /// When the machine's next timeout is due; [`Time::NEVER`] without one.
    pub(crate) fn due(&self) -> Time {
        self.machine.next_timeout().unwrap_or(Time::NEVER)
    }

    /// Runs one timeout if it is due, then handles all outputs. Whether it was due.
    pub(crate) fn timeout(&mut self, handler: &mut impl Handler<M>, now: Time) -> bool {
        let due = self.due() <= now;
        if due {
            handler.timeout(&mut self.machine, now);
        }
        self.drain(handler, now);
        due
    }

    /// Runs all timeouts that are due, and handles all outputs.
    pub(crate) fn catch_up(&mut self, handler: &mut impl Handler<M>, now: Time) {
        while self.timeout(handler, now) {}
    }

    /// Waits for an event. `None` once the machine's timeout is due, or `limit` has come.
    pub(crate) async fn wait<E>(&self, limit: Time, event: impl Future<Output = E>) -> Option<E> {
        tokio::select! {
            event = event => Some(event),
            () = clock::until(self.due().min(limit)) => None,
        }
    }
}

/// A machine and its handler, shared by the tasks of one thread. Clones are handles to the same machine.
///
/// It runs inside a [`tokio::task::LocalSet`], where it keeps its timer.
pub(crate) struct SharedDriver<M, H>(Rc<Shared<M, H>>);

struct Shared<M, H> {
    state: RefCell<(Driver<M>, H)>,
    /// The earliest time that a timer task waits for; [`Time::NEVER`] without one.
    armed: Cell<Time>,
}

/// A handle that does not keep the machine alive.
pub(crate) struct WeakDriver<M, H>(Weak<Shared<M, H>>);

impl<M, H> Clone for SharedDriver<M, H> {
    fn clone(&self) -> Self {
        SharedDriver(self.0.clone())
    }
}

impl<M, H> Clone for WeakDriver<M, H> {
    fn clone(&self) -> Self {
        WeakDriver(self.0.clone())
    }
}

impl<M, H> WeakDriver<M, H> {
    /// The machine, unless its last handle is gone.
    pub(crate) fn upgrade(&self) -> Option<SharedDriver<M, H>> {
        self.0.upgrade().map(SharedDriver)
    }
}

impl<M: Machine + 'static, H: Handler<M> + 'static> SharedDriver<M, H> {
    /// Takes over a machine. Its handler may keep the weak handle that `handler` gets.
    pub(crate) fn new(machine: M, handler: impl FnOnce(WeakDriver<M, H>) -> H) -> SharedDriver<M, H> {
        SharedDriver(Rc::new_cyclic(|weak| {
            let handler = handler(WeakDriver(weak.clone()));
            Shared { state: RefCell::new((Driver::new(machine), handler)), armed: Cell::new(Time::NEVER) }
        }))
    }

    /// Gives the machine an input, handles its outputs and arms the timer.
    ///
    /// # Panics
    /// If an input or a handler calls it again.
    pub(crate) fn input<T>(&self, act: impl FnOnce(&mut M, &mut H, Time) -> T) -> T {
        let now = clock::now();
        let (driver, handler) = &mut *self.0.state.borrow_mut();
        let result = act(&mut driver.machine, handler, now);
        driver.drain(handler, now);
        self.arm(driver);
        result
    }

    /// Reads the handler's state.
    pub(crate) fn handler<T>(&self, read: impl FnOnce(&mut H) -> T) -> T {
        read(&mut self.0.state.borrow_mut().1)
    }

    /// Starts a timer unless an earlier one runs. A timer that turns out to be too early re-arms itself.
    fn arm(&self, driver: &Driver<M>) {
        let due = driver.due();
        if due < self.0.armed.get() {
            self.0.armed.set(due);
            tokio::task::spawn_local(Self::expire(Rc::downgrade(&self.0), due));
        }
    }

    async fn expire(shared: Weak<Shared<M, H>>, due: Time) {
        clock::until(due).await;
        let Some(shared) = shared.upgrade() else { return };
        // An earlier timer replaced this one.
        if shared.armed.get() != due {
            return;
        }
        shared.armed.set(Time::NEVER);
        let this = SharedDriver(shared);
        let (driver, handler) = &mut *this.0.state.borrow_mut();
        // One timeout at a time: other tasks run in between.
        driver.timeout(handler, clock::now());
        this.arm(driver);
    }
}

#[cfg(test)]
mod tests {
    use tidegate_control::units::Span;

    use super::*;

    /// Outputs a number every 5 ms, up to 3.
    struct Counter {
        due: Option<Time>,
        count: u32,
        output: Option<u32>,
    }

    impl Machine for Counter {
        type Output = u32;
        fn poll(&mut self) -> Option<u32> {
            self.output.take()
        }
        fn next_timeout(&self) -> Option<Time> {
            self.due
        }
        fn timeout(&mut self, now: Time) {
            self.count += 1;
            self.output = Some(self.count);
            self.due = (self.count < 3).then_some(now + Span::from_millis(5));
        }
    }

    #[derive(Default)]
    struct Seen(Vec<u32>);

    impl Handler<Counter> for Seen {
        fn handle(&mut self, _: &mut Counter, _: Time, output: u32) {
            self.0.push(output);
        }
    }

    fn on_one_thread<F: Future>(test: F) -> F::Output {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(tokio::task::LocalSet::new().run_until(test))
    }

    #[test]
    fn a_shared_driver_keeps_its_timer() {
        on_one_thread(async {
            let counter = Counter { due: None, count: 0, output: None };
            let shared = SharedDriver::new(counter, |_| Seen::default());
            // A later timer that an earlier one replaces.
            shared.input(|counter, _, now| counter.due = Some(now + Span::from_secs(60)));
            shared.input(|counter, _, now| counter.due = Some(now));
            let end = clock::now() + Span::from_secs(60);
            while shared.handler(|seen| seen.0.len()) < 3 && clock::now() < end {
                clock::until(clock::now() + Span::from_millis(5)).await;
            }
            // A fourth output would come after another 5 ms.
            clock::until(clock::now() + Span::from_millis(20)).await;
            assert_eq!(shared.handler(|seen| seen.0.clone()), [1, 2, 3]);
        });
    }

    #[test]
    fn an_event_loop_wakes_for_events_timeouts_and_limits() {
        on_one_thread(async {
            let mut seen = Seen::default();
            let mut driver = Driver::new(Counter { due: None, count: 0, output: None });
            assert_eq!(driver.wait(Time::NEVER, async { 7 }).await, Some(7));
            let limit = clock::now() + Span::from_millis(2);
            assert_eq!(driver.wait(limit, std::future::pending::<()>()).await, None);
            driver.input(&mut seen, |counter, now| counter.due = Some(now));
            while driver.due() < Time::NEVER {
                assert_eq!(driver.wait(Time::NEVER, std::future::pending::<()>()).await, None);
                driver.catch_up(&mut seen, clock::now());
            }
            assert_eq!(seen.0, [1, 2, 3]);
        });
    }
}
