//! Faults between hosts, as rules that a packet passes through, and outages of hosts.

use tidegate_control::random::Random;
use tidegate_control::units::{Span, Time};

use crate::observe::Host;
use crate::plan::{Fault, FaultKind};

/// A host stops or comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Transition {
    /// When.
    pub at: Time,
    /// Which.
    pub host: Host,
    /// Whether it is up from then on.
    pub up: bool,
}

/// When hosts stop ([`FaultKind::HostDown`]) and come back, in order of time and host. Faults of one host
/// that overlap or touch are one.
pub(crate) fn transitions(faults: &[Fault]) -> Vec<Transition> {
    let mut hosts: Vec<u32> = faults
        .iter()
        .filter_map(|fault| match fault.kind {
            FaultKind::HostDown { host } => Some(host),
            _ => None,
        })
        .collect();
    hosts.sort_unstable();
    hosts.dedup();
    let mut all = Vec::new();
    for host in hosts {
        let down = Outages::new(faults, |kind| *kind == FaultKind::HostDown { host });
        for (from, until) in down.periods {
            all.push(Transition { at: from, host: Host(host), up: false });
            all.push(Transition { at: until, host: Host(host), up: true });
        }
    }
    all.sort_by_key(|change| (change.at, change.host));
    all
}

/// Periods `[from, until)` of an outage, disjoint and sorted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outages {
    periods: Vec<(Time, Time)>,
    passed: usize,
}

impl Outages {
    /// The periods of the faults that match.
    pub(crate) fn new(faults: &[Fault], concerns: impl Fn(&FaultKind) -> bool) -> Outages {
        let concerned = faults.iter().filter(|fault| concerns(&fault.kind) && fault.from < fault.until);
        let mut sorted: Vec<(Time, Time)> = concerned.map(|fault| (fault.from, fault.until)).collect();
        sorted.sort_unstable();
        let mut periods: Vec<(Time, Time)> = Vec::new();
        for (from, until) in sorted {
            match periods.last_mut() {
                Some(last) if from <= last.1 => last.1 = last.1.max(until),
                _ => periods.push((from, until)),
            }
        }
        Outages { periods, passed: 0 }
    }

    /// The current or next period.
    pub(crate) fn period(&self) -> (Time, Time) {
        self.periods.get(self.passed).copied().unwrap_or((Time::NEVER, Time::NEVER))
    }

    /// Whether a period contains `now`, which never decreases.
    pub(crate) fn cover(&mut self, now: Time) -> bool {
        while self.periods.get(self.passed).is_some_and(|(_, until)| *until <= now) {
            self.passed += 1;
        }
        self.periods.get(self.passed).is_some_and(|(from, _)| *from <= now)
    }

    /// The period has ended.
    pub(crate) fn pass(&mut self) {
        self.passed += 1;
    }
}

/// The shares of its rate that a host's link carries ([`FaultKind::LinkShare`]), each with the time from which it holds;
/// the rate is whole before the first.
pub(crate) fn link_shares(faults: &[Fault], this: u32) -> Vec<(Time, f64)> {
    let of_this = |fault: &Fault| match fault.kind {
        FaultKind::LinkShare { host, share } if host == this => Some((fault.from, fault.until, share)),
        _ => None,
    };
    let shares: Vec<(Time, Time, f64)> = faults.iter().filter_map(of_this).collect();
    let mut changes: Vec<Time> = shares.iter().flat_map(|(from, until, _)| [*from, *until]).collect();
    changes.sort_unstable();
    changes.dedup();
    let share_at = |at: Time| {
        let hold = shares.iter().filter(|(from, until, _)| *from <= at && at < *until);
        hold.map(|(.., share)| share).product()
    };
    changes.into_iter().map(|at| (at, share_at(at))).collect()
}

/// Rules for packets between locations.
#[derive(Clone, Debug)]
pub(crate) struct PathFaults {
    /// The rules that have not ended, in the order of their beginning.
    rules: Vec<Fault>,
    /// When the next of them ends.
    next_end: Time,
    can_delay: bool,
}

impl PathFaults {
    /// The faults that concern paths.
    pub(crate) fn new(faults: &[Fault]) -> PathFaults {
        let mut rules: Vec<Fault> =
            faults.iter().filter(|fault| between(&fault.kind).is_some()).copied().collect();
        rules.sort_by_key(|fault| fault.from);
        let can_delay = rules.iter().any(|rule| matches!(rule.kind, FaultKind::Delay { .. }));
        let mut all = PathFaults { rules, next_end: Time::ZERO, can_delay };
        all.forget(Time::ZERO);
        all
    }

    /// Whether a fault delays packets for a while: at its end they could be overtaken.
    pub(crate) fn can_delay(&self) -> bool {
        self.can_delay
    }

    /// What happens to a packet that enters the path at `entry` (not before `now`): the extra delay, or
    /// `None` if it is lost.
    #[inline]
    pub(crate) fn pass(
        &mut self,
        now: Time,
        entry: Time,
        between: (u32, u32),
        draws: &mut Random,
    ) -> Option<Span> {
        if self.rules.is_empty() { Some(Span::ZERO) } else { self.apply(now, entry, between, draws) }
    }

    fn apply(&mut self, now: Time, entry: Time, (from, to): (u32, u32), draws: &mut Random) -> Option<Span> {
        if now >= self.next_end {
            self.forget(now);
        }
        let mut extra = Span::ZERO;
        for rule in self.rules.iter().take_while(|rule| rule.from <= entry) {
            let Some((a, b)) = between(&rule.kind) else { continue };
            if entry >= rule.until || (a, b) != (from, to) && (b, a) != (from, to) {
                continue;
            }
            match rule.kind {
                FaultKind::Drop { probability, .. } if draws.chance(probability) => return None,
                FaultKind::Partition { .. } => return None,
                FaultKind::Delay { extra: more, .. } => extra = extra + more,
                _ => {}
            }
        }
        Some(extra)
    }

    fn forget(&mut self, now: Time) {
        self.rules.retain(|rule| rule.until > now);
        self.next_end = self.rules.iter().map(|rule| rule.until).min().unwrap_or(Time::NEVER);
    }
}

/// The two locations that a fault lies between.
fn between(kind: &FaultKind) -> Option<(u32, u32)> {
    match *kind {
        FaultKind::Drop { between, .. }
        | FaultKind::Delay { between, .. }
        | FaultKind::Partition { between } => Some(between),
        FaultKind::LinkDown { .. }
        | FaultKind::LinkShare { .. }
        | FaultKind::HostDown { .. }
        | FaultKind::Byzantine { .. } => None,
    }
}
