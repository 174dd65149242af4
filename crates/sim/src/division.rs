//! Divides a run's hosts among processes that may run at the same time.
//!
//! The rule is that of conservative parallel simulation: an event at one place affects another place only after the
//! delay of the path between them. Locations closer to each other than a [`WINDOW`] form a group, and so do the hosts
//! of
//! one machine. Groups are assigned to the plan's number of processes, the busiest first, each to the process with the
//! least work. A division and its results depend on the plan alone, never on threads.

use std::ops::{Index, IndexMut};
use std::sync::Arc;

use tidegate_control::units::Span;
use tidegate_proto::transport::Transport;

use crate::plan::{Path, Plan, Role, Route, System};

/// Shortest path between two processes. Longer windows leave too few processes: at 4 ms most of Europe is one.
pub(crate) const WINDOW: Span = Span::from_millis(1);

/// Assignment of hosts and users to processes.
#[derive(Debug)]
pub(crate) struct Division {
    /// How many processes there are.
    pub processes: u32,
    pub hosts: Shares,
    pub users: Shares,
}

impl Division {
    /// Gives everything to one process.
    pub(crate) fn whole(hosts: u32, users: u32) -> Arc<Division> {
        let all = |count: u32| Shares::new(vec![0; count as usize], 1);
        Arc::new(Division { processes: 1, hosts: all(hosts), users: all(users) })
    }

    /// Divides a plan among the processes that it asks for.
    pub(crate) fn new(plan: &Plan) -> Arc<Division> {
        let (hosts, users) = (plan.hosts.len() as u32, plan.users.len() as u32);
        if plan.processes <= 1 {
            return Division::whole(hosts, users);
        }
        let of_location = dealt(plan, &near(plan, WINDOW));
        let of_host: Vec<u32> = plan.hosts.iter().map(|host| of_location[host.location as usize]).collect();
        let of_user = plan.users.iter().map(|user| of_host[user.host as usize]).collect();
        let processes = of_location.iter().max().map_or(1, |last| last + 1);
        Arc::new(Division {
            processes,
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
        (plan.trace_one_in > 0, "cells that are followed (`trace-one-in`)"),
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

/// By location: the lowest location of its group. Locations are in one group if a path between them is shorter than the
/// window or if a machine is at both.
pub fn near(plan: &Plan, window: Span) -> Vec<usize> {
    let locations = plan.paths.locations();
    let mut group: Vec<usize> = (0..locations as usize).collect();
    let mut join = |a: u32, b: u32| {
        let (one, other) = (group[a as usize], group[b as usize]);
        if one != other {
            let low = one.min(other);
            group
                .iter_mut()
                .filter(|group| **group == one || **group == other)
                .for_each(|group| *group = low);
        }
    };
    // A packet may not cross from one process to another within a window.
    for a in 0..locations {
        for b in a + 1..locations {
            if least_delay(plan.paths.get(a, b)).min(least_delay(plan.paths.get(b, a))) < window {
                join(a, b);
            }
        }
    }
    for host in &plan.hosts {
        if let Some(other) = host.colocated {
            join(host.location, plan.hosts[other as usize].location);
        }
    }
    group
}

/// Assigns locations to processes by their expected work: a user's cells pass three relays, each as often as clients
/// choose it.
fn dealt(plan: &Plan, group: &[usize]) -> Vec<u32> {
    let mut work = vec![0.0; group.len()];
    let place = |host: u32| group[plan.hosts[host as usize].location as usize];
    let users = plan.users.len().max(1) as f64;
    plan.users.iter().for_each(|user| work[place(user.host)] += 1.0 / users);
    let weights: f64 = plan.directory.relays.iter().map(|relay| relay.weight).sum();
    for relay in plan.directory.relays.iter().filter(|_| weights > 0.0) {
        work[place(relay.id.0)] += 3.0 * relay.weight / weights;
    }
    let others = plan.hosts.iter().filter(|host| host.role == Role::Server).count().max(1) as f64;
    for (number, _) in (0..).zip(&plan.hosts).filter(|(_, host)| host.role == Role::Server) {
        work[place(number)] += 1.0 / others;
    }
    let mut order: Vec<usize> = (0..group.len()).filter(|at| group[*at] == *at && work[*at] > 0.0).collect();
    order.sort_by(|a, b| work[*b].total_cmp(&work[*a]).then(a.cmp(b)));
    let mut loads = vec![0.0_f64; (plan.processes as usize).min(order.len()).max(1)];
    let mut process = vec![0; group.len()];
    for at in order {
        // Greedy: the largest group first, always to the least loaded process.
        let least = (0..loads.len()).min_by(|a, b| loads[*a].total_cmp(&loads[*b]).then(a.cmp(b)));
        let least = least.expect("there is a process");
        loads[least] += work[at];
        process[at] = least as u32;
    }
    group.iter().map(|at| process[*at]).collect()
}

#[cfg(test)]
mod tests {
    use crate::plan::PathTable;

    use super::*;

    #[test]
    fn near_locations_are_one_process_through_others_too() {
        let path = |from: u32, to: u32| Path {
            delay: Span::from_millis(u64::from(from.abs_diff(to))),
            ..Path::default()
        };
        let plan = Plan { paths: PathTable::from_fn(4, path), ..Plan::default() };
        let count = |window| {
            let mut all = near(&plan, Span::from_millis(window));
            all.sort_unstable();
            all.dedup();
            all.len()
        };
        assert_eq!([count(1), count(2)], [4, 1], "a chain of steps of 1 ms");
    }
}
