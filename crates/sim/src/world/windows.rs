//! A run that is divided among processes ([`crate::division`]), in windows of simulated time. In each window, every
//! process
//! handles the events of its hosts, on any thread; then the processes exchange messages. The order of messages and of
//! recorded observations does not depend on threads.

use std::cmp::Reverse;
use std::iter::Peekable;
use std::ops::ControlFlow;
use std::slice::Iter;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, MutexGuard, RwLock};

use tidegate_control::random::Seed;
use tidegate_control::units::{Span, Time};

use super::connections::Outbox;
use super::context::{Observed, PROGRESS_EVERY, RunEnd};
use super::event_loop::World;
use crate::division::Division;
use crate::observe::{Observation, Recorder};
use crate::plan::{Plan, System};

/// A process of the run.
struct Process<'a> {
    world: World<'a>,
    /// Events in the last window.
    busy: u64,
}

/// Messages of one process to another in a window.
type Mail = Mutex<Outbox>;

/// State shared by the threads.
struct Shared<'a> {
    /// Length of a window.
    window: Span,
    processes: Vec<Mutex<Process<'a>>>,
    /// Messages by receiver and sender, for windows with even and with odd numbers.
    mail: [Vec<Vec<Mail>>; 2],
    /// Processes in the order in which threads take them: the busiest first.
    order: RwLock<Vec<usize>>,
    next: AtomicUsize,
    over: AtomicBool,
    barrier: Barrier,
}

/// Locks a mutex. A panic of a thread ends the run, so poisoning does not occur.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no thread has panicked")
}

impl Shared<'_> {
    /// Takes processes while any are left, and runs their window.
    fn work(&self, window: u64, last: Time) {
        let begins = Time(window * self.window.0);
        let ends = Time(begins.0 + self.window.0 - 1).min(last);
        loop {
            let at = self.next.fetch_add(1, Ordering::Relaxed);
            let order = self.order.read().expect("no thread has panicked");
            let Some(&number) = order.get(at) else { return };
            let Process { world, busy } = &mut *lock(&self.processes[number]);
            let [heard, sent] = [1 - window % 2, window % 2].map(|parity| &self.mail[parity as usize]);
            for (from, told) in (0..).zip(&heard[number]) {
                world.hear(from, begins, &mut lock(told));
            }
            let before = world.net.ctx.queue.popped();
            world.run_window(ends);
            *busy = world.net.ctx.queue.popped() - before;
            for (told, mail) in world.net.connections.told().iter_mut().zip(sent) {
                std::mem::swap(told, &mut lock(&mail[number]));
            }
        }
    }

    /// The loop of every thread but the first.
    fn follow(&self, last: Time) {
        for window in 0.. {
            self.barrier.wait();
            if self.over.load(Ordering::Relaxed) {
                return;
            }
            self.work(window, last);
            self.barrier.wait();
        }
    }

    /// Prepares the next window, while the threads wait. Returns the events of the last window.
    fn prepare(&self) -> u64 {
        let busy: Vec<u64> = self.processes.iter().map(|process| lock(process).busy).collect();
        let mut order = self.order.write().expect("no thread has panicked");
        order.sort_by_key(|number| Reverse((busy[*number], *number)));
        self.next.store(0, Ordering::Relaxed);
        busy.iter().sum()
    }

    /// Swaps the observations of a window for empty memory.
    fn observed(&self, observed: &mut [Observed]) {
        for (process, observed) in self.processes.iter().zip(observed) {
            std::mem::swap(&mut lock(process).world.net.ctx.observed, observed);
        }
    }
}

/// Records all observations of a window, ordered by time and process.
fn record<R: Recorder>(recorder: &mut R, observed: &mut [Observed]) {
    let mut heads: Vec<_> = observed.iter().map(|observed| observed.iter().peekable()).collect();
    let due = |head: &mut Peekable<Iter<'_, (Time, Observation)>>| head.peek().map(|(at, _)| *at);
    loop {
        let times = heads.iter_mut().enumerate().filter_map(|(process, head)| Some((due(head)?, process)));
        let Some((_, first)) = times.min() else { break };
        if let Some((at, observation)) = heads[first].next() {
            recorder.record(*at, observation);
        }
    }
    observed.iter_mut().for_each(Vec::clear);
}

/// The threads of a divided run. Results do not depend on them.
#[derive(Clone, Copy)]
pub struct Threads<'t> {
    /// Number of threads, including the caller's. Threads beyond the number of processes are idle.
    pub count: usize,
    /// Called on each of the other threads with its work, which it must call. It can measure the thread's time, for
    /// instance.
    pub around: &'t (dyn Fn(&mut dyn FnMut()) + Sync),
}

impl Threads<'_> {
    /// Only the caller's thread.
    pub(crate) const ONE: Threads<'static> = Threads { count: 1, around: &|work| work() };
}

/// As [`run_on`](super::run_on), where the plan is divided.
pub(super) fn run<R: Recorder>(
    (plan, system, seed): (&Plan, &System, Seed),
    division: &Arc<Division>,
    threads: &Threads<'_>,
    recorder: &mut R,
    progress: &mut dyn FnMut(Time) -> ControlFlow<()>,
) -> RunEnd {
    let last = Time::ZERO + plan.duration;
    let numbers = 0..division.processes;
    let process = |number| {
        let mut world = World::new((plan, system, seed), (division, number));
        world.begin();
        Mutex::new(Process { world, busy: 0 })
    };
    let each = || numbers.clone().map(|_| Mail::default()).collect();
    let mail = || numbers.clone().map(|_| each()).collect();
    let count = threads.count.clamp(1, numbers.len());
    let shared = Shared {
        window: division.window,
        processes: numbers.clone().map(process).collect(),
        mail: [mail(), mail()],
        order: RwLock::new((0..numbers.len()).collect()),
        next: AtomicUsize::new(0),
        over: AtomicBool::new(false),
        barrier: Barrier::new(count),
    };
    let stopped = std::thread::scope(|scope| {
        for _ in 1..count {
            scope.spawn(|| (threads.around)(&mut || shared.follow(last)));
        }
        let stopped = direct(&shared, last, recorder, progress);
        // Releases the threads from the barrier at which they wait for another window.
        shared.over.store(true, Ordering::Relaxed);
        shared.barrier.wait();
        stopped
    });
    finish(shared, stopped, recorder)
}

/// The loop of the first thread. It also records the window before, and decides when the run is over.
fn direct<R: Recorder>(
    shared: &Shared<'_>,
    last: Time,
    recorder: &mut R,
    progress: &mut dyn FnMut(Time) -> ControlFlow<()>,
) -> bool {
    let mut observed: Vec<Observed> = shared.processes.iter().map(|_| Observed::new()).collect();
    let mut since_progress = 0;
    for window in 0..=last.0 / shared.window.0 {
        shared.barrier.wait();
        record(recorder, &mut observed);
        shared.work(window, last);
        shared.barrier.wait();
        shared.observed(&mut observed);
        since_progress += shared.prepare();
        if since_progress >= u64::from(PROGRESS_EVERY) {
            since_progress = 0;
            if progress(Time(window * shared.window.0)).is_break() {
                return true;
            }
        }
    }
    record(recorder, &mut observed);
    false
}

fn finish<R: Recorder>(shared: Shared<'_>, stopped: bool, recorder: &mut R) -> RunEnd {
    let mut totals = Vec::new();
    let mut end = RunEnd { reached: Time::ZERO, events: 0, filings: 0, cells_delivered: 0, stopped };
    let mut peak_pending_events = 0;
    for process in shared.processes {
        let mut world = process.into_inner().expect("no thread has panicked").world;
        world.record_totals();
        end.reached = world.net.ctx.now;
        end.events += world.net.ctx.queue.popped();
        end.filings += world.net.ctx.queue.filed();
        end.cells_delivered += world.cells_delivered();
        peak_pending_events += world.net.ctx.queue.peak() as u64;
        totals.append(&mut world.net.ctx.observed);
    }
    totals.sort_by_key(|(_, totals)| match totals {
        Observation::HostTotals { host, .. } => host.0,
        _ => u32::MAX,
    });
    let RunEnd { reached, events, cells_delivered, .. } = end;
    totals.push((reached, Observation::RunTotals { events, cells_delivered, peak_pending_events }));
    for (at, observation) in totals {
        recorder.record(at, &observation);
    }
    end
}
