//! Divides a run's hosts among processes that may run at the same time.
//!
//! The rule is that of conservative parallel simulation: an event at one host affects another host only after the delay
//! of the path between them. Hosts of one machine form a unit, and so do hosts closer to each other than the window.
//! Units are assigned to the plan's number of processes, the busiest first, each to the process with the
//! least work. A division and its results depend on the plan alone, never on threads.

use std::ops::{Index, IndexMut};
use std::sync::Arc;

use tidegate_control::units::Span;
use tidegate_proto::transport::Transport;

use crate::plan::{HostPlan, Path, Plan, Role, Route, System};

/// Candidates for the window, the shortest path between two processes. Longer windows cost fewer exchanges, but leave
/// larger units: at 4 ms most of Europe is one.
const WINDOWS: [Span; 4] =
    [Span::from_micros(1_000), Span::from_micros(500), Span::from_micros(200), Span::from_micros(100)];
/// A division is even if the busiest process has at most this multiple of the mean work.
const EVEN: f64 = 1.1;

/// Assignment of hosts and users to processes.
#[derive(Debug)]
pub(crate) struct Division {
    /// How many processes there are.
    pub processes: u32,
    /// How long a process may run without word from the others.
    pub window: Span,
    pub hosts: Shares,
    pub users: Shares,
}

impl Division {
    /// Gives everything to one process.
    pub(crate) fn whole(hosts: u32, users: u32) -> Arc<Division> {
        let all = |count: u32| Shares::new(vec![0; count as usize], 1);
        Arc::new(Division { processes: 1, window: WINDOWS[0], hosts: all(hosts), users: all(users) })
    }

    /// Divides a plan among the processes that it asks for, with the longest window that divides it evenly, or else the one
    /// that comes nearest to it.
    pub(crate) fn new(plan: &Plan) -> Arc<Division> {
        let (hosts, users) = (plan.hosts.len() as u32, plan.users.len() as u32);
        if plan.processes <= 1 {
            return Division::whole(hosts, users);
        }
        let work = work(plan);
        let mut best: Option<(f64, Span, Vec<u32>)> = None;
        for window in WINDOWS {
            let (process, uneven) = dealt(&work, &units(plan, window), plan.processes);
            if best.as_ref().is_none_or(|(least, ..)| uneven < *least) {
                best = Some((uneven, window, process));
            }
            if uneven <= EVEN {
                break;
            }
        }
        let (_, window, of_host) = best.expect("there are windows");
        let of_user = plan.users.iter().map(|user| of_host[user.host as usize]).collect();
        let processes = of_host.iter().max().map_or(1, |last| last + 1);
        Arc::new(Division {
            processes,
            window,
            hosts: Shares::new(of_host, processes),
            users: Shares::new(of_user, processes),
        })
    }
}

/// Assignment of numbered items to processes.
#[derive(Debug)]
pub(crate) struct Shares {
    /// By number.
    process: Vec<u32>,
    /// By number: the index among the items of its process. Empty if one process has all.
    slots: Arc<[u32]>,
    /// By process.
    numbers: Vec<Arc<[u32]>>,
}

impl Shares {
    fn new(process: Vec<u32>, processes: u32) -> Shares {
        let mut numbers = vec![Vec::new(); processes as usize];
        let mut slots = Vec::new();
        for (number, process) in (0..).zip(&process) {
            let own: &mut Vec<u32> = &mut numbers[*process as usize];
            if processes > 1 {
                slots.push(own.len() as u32);
            }
            own.push(number);
        }
        Shares { process, slots: slots.into(), numbers: numbers.into_iter().map(Arc::from).collect() }
    }

    /// The process that has an item.
    pub(crate) fn process(&self, number: u32) -> u32 {
        self.process[number as usize]
    }

    /// The items of a process, in order.
    pub(crate) fn of(&self, process: u32) -> Arc<[u32]> {
        Arc::clone(&self.numbers[process as usize])
    }

    /// Makes a value for each item of a process.
    pub(crate) fn local<T>(&self, process: u32, make: impl FnMut(u32) -> T) -> Local<T> {
        let items = self.numbers[process as usize].iter().copied().map(make).collect();
        Local { items, slots: Arc::clone(&self.slots) }
    }
}

/// Values for the items of one process, indexed by their number among all items.
#[derive(Debug)]
pub(crate) struct Local<T> {
    items: Vec<T>,
    slots: Arc<[u32]>,
}

impl<T> Local<T> {
    fn slot(&self, number: usize) -> usize {
        if self.slots.is_empty() { number } else { self.slots[number] as usize }
    }
}

impl<T> Index<usize> for Local<T> {
    type Output = T;

    fn index(&self, number: usize) -> &T {
        &self.items[self.slot(number)]
    }
}

impl<T> IndexMut<usize> for Local<T> {
    fn index_mut(&mut self, number: usize) -> &mut T {
        let slot = self.slot(number);
        &mut self.items[slot]
    }
}

/// The first feature of a plan or system that prevents division: it acts at two places at once, or observes all of
/// them.
pub fn obstacle(plan: &Plan, system: &System) -> Option<&'static str> {
    let to_service = |route: &Route| matches!(route, Route::Drawn { onion_service: true, .. });
    let obstacles = [
        (system.transport == Transport::Quic, "QUIC"),
        (system.conflux.is_some(), "linked circuits (conflux)"),
        (plan.trace_one_in > 0, "traced cells (`trace-one-in`)"),
        (!plan.measurements.is_empty(), "FlashFlow's measurements"),
        (!plan.faults.is_empty(), "faults"),
        (plan.users.iter().any(|user| to_service(&user.route)), "onion services"),
    ];
    obstacles.iter().find(|(there, _)| *there).map(|(_, what)| *what)
}

/// Lower bound of a packet's delay on this path.
fn least_delay(path: &Path) -> Span {
    if path.jitter > Span::ZERO { path.least_delay() } else { path.delay }
}

/// Sets of numbered items: each item refers to a lower one of its set, or to itself.
struct Sets(Vec<u32>);

impl Sets {
    fn new(count: usize) -> Sets {
        Sets((0..count as u32).collect())
    }

    /// The lowest item of a set.
    fn lowest(&mut self, mut item: u32) -> u32 {
        while self.0[item as usize] != item {
            let above = self.0[item as usize];
            self.0[item as usize] = self.0[above as usize];
            item = above;
        }
        item
    }

    fn join(&mut self, one: u32, other: u32) {
        let (one, other) = (self.lowest(one), self.lowest(other));
        self.0[one.max(other) as usize] = one.min(other);
    }
}

/// By host: the lowest host of its unit. Hosts are in one unit if they are on one machine, or if a path between them is
/// shorter than the window. A packet may not cross from one process to another within a window.
pub fn units(plan: &Plan, window: Span) -> Vec<u32> {
    let locations = plan.paths.locations();
    let is_short = |a, b| least_delay(plan.paths.get(a, b)) < window;
    let mut first_at = vec![None; locations as usize];
    let mut sets = Sets::new(plan.hosts.len());
    for (host, HostPlan { location, colocated, .. }) in (0..).zip(&plan.hosts) {
        if let Some(other) = colocated {
            sets.join(host, *other);
        }
        // The hosts of a location are equally near to those of another.
        let first = *first_at[*location as usize].get_or_insert(host);
        if is_short(*location, *location) {
            sets.join(host, first);
        }
    }
    let mut near = vec![Vec::new(); locations as usize];
    for a in 0..locations {
        for b in a + 1..locations {
            if is_short(a, b) || is_short(b, a) {
                near[a as usize].push(b);
                near[b as usize].push(a);
            }
        }
    }
    for (host, HostPlan { location, .. }) in (0..).zip(&plan.hosts) {
        for other in &near[*location as usize] {
            if let Some(first) = first_at[*other as usize] {
                sets.join(host, first);
            }
        }
    }
    (0..plan.hosts.len() as u32).map(|host| sets.lowest(host)).collect()
}

/// Each host's expected work: a user's cells pass three relays, each as often as clients choose it.
fn work(plan: &Plan) -> Vec<f64> {
    let mut work = vec![0.0; plan.hosts.len()];
    let users = plan.users.len().max(1) as f64;
    plan.users.iter().for_each(|user| work[user.host as usize] += 1.0 / users);
    let weights: f64 = plan.directory.relays.iter().map(|relay| relay.weight).sum();
    for relay in plan.directory.relays.iter().filter(|_| weights > 0.0) {
        work[relay.id.0 as usize] += 3.0 * relay.weight / weights;
    }
    let servers = plan.hosts.iter().filter(|host| host.role == Role::Server).count().max(1) as f64;
    for (work, _) in work.iter_mut().zip(&plan.hosts).filter(|(_, host)| host.role == Role::Server) {
        *work += 1.0 / servers;
    }
    work
}

/// Assigns units to processes by their work. Returns the process of each host, and the most work of a process as a multiple
/// of the mean that as many processes as requested would have.
fn dealt(work: &[f64], units: &[u32], processes: u32) -> (Vec<u32>, f64) {
    let mut of_unit = vec![0.0; units.len()];
    units.iter().zip(work).for_each(|(unit, work)| of_unit[*unit as usize] += work);
    let mut order: Vec<usize> = (0..units.len()).filter(|unit| of_unit[*unit] > 0.0).collect();
    order.sort_by(|a, b| of_unit[*b].total_cmp(&of_unit[*a]).then(a.cmp(b)));
    let mut loads = vec![0.0_f64; (processes as usize).min(order.len()).max(1)];
    let mut process = vec![0; units.len()];
    for unit in order {
        // Greedy: the largest unit first, always to the least loaded process.
        let least = (0..loads.len()).min_by(|a, b| loads[*a].total_cmp(&loads[*b]).then(a.cmp(b)));
        let least = least.expect("there is a process");
        loads[least] += of_unit[unit];
        process[unit] = least as u32;
    }
    let (most, all) = loads.iter().fold((0.0_f64, 0.0), |(most, all), load| (most.max(*load), all + load));
    let uneven = if all > 0.0 { most / all * f64::from(processes) } else { 1.0 };
    (units.iter().map(|unit| process[*unit as usize]).collect(), uneven)
}

#[cfg(test)]
mod tests {
    use tidegate_control::units::Rate;

    use super::*;
    use crate::plan::{LinkPlan, PathTable, QueuePlan};

    fn host(location: u32, colocated: Option<u32>) -> HostPlan {
        let queue = QueuePlan::DropTail { packets: u32::MAX, bytes: u64::MAX };
        let link = LinkPlan { rate: Rate::UNLIMITED, queue };
        HostPlan { name: String::new(), role: Role::Server, location, colocated, up: link, down: link }
    }

    /// Hosts at locations in a row, a millisecond apart, with this delay within a location.
    fn row(within: Span, hosts: Vec<HostPlan>) -> Plan {
        let path = |from: u32, to: u32| Path {
            delay: if from == to { within } else { Span::from_millis(u64::from(from.abs_diff(to))) },
            ..Path::default()
        };
        Plan { paths: PathTable::from_fn(4, path), hosts, ..Plan::default() }
    }

    #[test]
    fn near_hosts_are_one_unit_through_others_too() {
        let hosts = || [0, 1, 2, 3, 3].map(|location| host(location, None)).to_vec();
        let of = |within, window| units(&row(Span::from_micros(within), hosts()), Span::from_micros(window));
        assert_eq!(of(300, 1_000), [0, 1, 2, 3, 3], "hosts of a location are closer than the window");
        assert_eq!(of(300, 200), [0, 1, 2, 3, 4], "and are not");
        assert_eq!(of(300, 1_001), [0; 5], "a chain of steps of 1 ms");
        assert_eq!(of(3_000, 1_001), [0; 5], "through the hosts of the next location");
        let mut apart = hosts();
        apart[4].colocated = Some(1);
        assert_eq!(units(&row(Span::from_millis(3), apart), WINDOWS[0]), [0, 1, 2, 3, 1], "one machine");
    }

    #[test]
    fn the_longest_window_that_divides_evenly_is_used() {
        let division = |within, hosts: &[u32]| {
            let hosts = hosts.iter().map(|location| host(*location, None)).collect();
            let plan = Plan { processes: 4, ..row(Span::from_micros(within), hosts) };
            let division = Division::new(&plan);
            (division.window, division.processes, division.hosts.process.clone())
        };
        assert_eq!(division(10, &[0, 1, 2, 3]), (WINDOWS[0], 4, vec![0, 1, 2, 3]));
        assert_eq!(division(300, &[0, 0, 0, 1]), (WINDOWS[2], 4, vec![0, 1, 2, 3]));
        assert_eq!(division(2_000, &[0, 0, 0, 0]), (WINDOWS[0], 4, vec![0, 1, 2, 3]));
        assert_eq!(division(10, &[0, 0, 0, 1]), (WINDOWS[0], 2, vec![0, 0, 0, 1]), "no window is better");
    }
}
