//! Builds the simulator's plan (hosts, paths, users, faults) from a scenario and a seed.
//!
//! The network depends only on scenario and seed, so all systems run on the same networks.

mod balanced;
pub(crate) mod builtin;
mod capacity;
pub(crate) mod demand;
mod faults;
mod hosts;
pub(crate) mod inputs;
mod privcount;
mod random;
mod tor;

use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate_control::positions::Class;
use tidegate_control::random::Seed;
use tidegate_control::units::{Span, Time};
use tidegate_proto::cell::RelayId;
use tidegate_sim::division::obstacle;
use tidegate_sim::plan::paths::Selector;
use tidegate_sim::plan::{Directory, HostPlan, Plan, RelayEntry, Role, Route, System, Traffic, UserPlan};
use tidegate_sim::tcp::Fidelity;

pub(crate) use capacity::LEAST;
use hosts::Hosts;
pub(crate) use hosts::Listed;

use crate::input::InputError;
use crate::scenario::Scenario;
use crate::scenario::file::Name;
use crate::scenario::idle::undrawn;
use crate::scenario::quantity::Between;
use crate::scenario::users::UserFile;
use crate::traffic;
pub use inputs::Inputs;

/// A plan, and names for reports.
#[derive(Clone, Debug)]
pub struct Network {
    /// The simulator's plan.
    pub plan: Plan,
    /// `users[i]` names `plan.users[i]`.
    pub users: Vec<String>,
    /// Published properties of relays, by number of their host.
    pub(crate) listed: BTreeMap<u32, Listed>,
}

/// A user's second path: as given, or drawn in a random network. Its draws are its own, so first paths do not depend on it.
fn second_path(
    scenario: &Scenario,
    user: &UserFile,
    hosts: &Hosts,
    first: &Route,
    seed: Seed,
) -> Option<[u32; 3]> {
    user.second_path.as_ref().map(|path| hosts.path(path)).or_else(|| {
        let table = scenario.file.random.as_ref().filter(|_| user.path.is_none())?;
        random::second_path(table.get_ref(), first, &mut seed.fork("second-path").random())
    })
}

/// Draws the network of one run.
pub fn build(scenario: &Scenario, seed: Seed) -> Result<Network, InputError> {
    let file = &scenario.file;
    let mut hosts = Hosts::new(scenario, seed.fork("underlay"));
    let mut directory = Directory::default();
    if let Some(table) = &file.random {
        random::relays(table.get_ref(), &mut hosts, seed.fork("relays"));
    } else if let Some(table) = &file.tor {
        directory = tor::network(table.get_ref(), &scenario.inputs, &mut hosts, seed.fork("tor"));
    } else {
        hosts.add_named(file);
        directory.relays = hosts.relays().map(|(host, name)| anybody(host, name)).collect();
    }
    let mut users = Users { scenario, plans: Vec::new(), names: Vec::new(), kinds: BTreeMap::new() };
    for (group, user) in file.user.iter().enumerate() {
        let user = user.get_ref();
        let branch = seed.fork("users").fork_index(group as u64);
        let count = file.users(user);
        for number in 0..count {
            let mut draws = branch.fork_index(number.into()).random();
            let name = user_name(user, count, number);
            let (route, client, server) = match (&user.path, &file.random) {
                (None, _) if user.shares.is_some() => {
                    let other = user.shares.as_ref().map(|name| name.get_ref());
                    let other = users.names.iter().position(|name| Some(name) == other);
                    let end = |name: &Option<Name>| hosts.named(name.as_ref().expect("checked").get_ref());
                    let other = other.expect("checked: the other user comes first") as u32;
                    (Route::Shared(other), end(&user.client), end(&user.server))
                }
                (None, None) if file.tor.is_some() => {
                    let table = file.tor.as_ref().expect("looked at").get_ref();
                    let inputs = &scenario.inputs;
                    let (client, server) =
                        tor::ends(table, inputs, &mut hosts, (user, &name, number), &mut draws);
                    (drawn(user), client, server)
                }
                (Some(path), _) => {
                    let path = hosts.path(path);
                    let (client, server) = hosts.ends(user, path);
                    (Route::Pinned(path), client, server)
                }
                (None, Some(table)) => random::circuit(table.get_ref(), &mut hosts, user, &mut draws),
                (None, None) => {
                    let end = |name: &Option<Name>| hosts.named(name.as_ref().expect("checked").get_ref());
                    (drawn(user), end(&user.client), end(&user.server))
                }
            };
            let second = second_path(scenario, user, &hosts, &route, branch.fork_index(number.into()));
            let start = draw(&user.start, &mut draws);
            // Ranks within a group make the shares of `awake` exact; the first users rest least.
            let rank = (f64::from(number) + 0.5) / f64::from(count);
            let rests = rests(user, rank, scenario.duration());
            users.add(user, name, (route, second), (client, server), start, rests);
        }
    }
    let Users { plans, names, .. } = users;
    let faults = faults::plan(file, &scenario.source, &hosts, seed.fork("churn"))?;
    let (hosts, paths, listed) = hosts.finish();
    let plan = Plan {
        hosts,
        paths,
        users: plans,
        directory,
        faults,
        duration: scenario.duration(),
        sample_every: scenario.sample(),
        trace_one_in: file.trace_one_in,
        processes: *file.processes,
        measurements: Vec::new(),
    };
    assert!(
        plan.users.iter().all(|user| plan.hosts[user.host as usize].role == Role::Client),
        "ends are checked"
    );
    check_paths(scenario, &plan)?;
    check_division(scenario, &plan)?;
    check_trains(scenario, &plan)?;
    Ok(Network { plan, users: names, listed })
}

/// Directory entry of a named relay: suitable for all positions, with weight 1.
fn anybody(host: u32, name: &str) -> RelayEntry {
    let (name, class, weight) = (name.to_owned(), Class::GuardExit, 1.0);
    RelayEntry { name, class, weight, ..RelayEntry::new(RelayId(host)) }
}

/// Checks that every system's clients find relays for all positions, and that comparing paths has an effect.
fn check_paths(scenario: &Scenario, plan: &Plan) -> Result<(), InputError> {
    for (system, table) in scenario.systems.iter().zip(&scenario.file.system) {
        if let Some((why, cure)) = no_comparison(plan, system) {
            let cause = format!(
                "system `{}`: `paths.policy` = {} has no effect: {why}",
                system.name,
                table.paths.policy.as_str()
            );
            return Err(scenario.source.error(table.paths.policy.span(), cause, cure));
        }
    }
    if !plan.users.iter().any(|user| matches!(user.route, Route::Drawn { .. })) {
        return check_undrawn(scenario);
    }
    for (system, table) in scenario.systems.iter().zip(&scenario.file.system) {
        if system.paths.policy.is_foreign(&plan.directory) {
            let paths = &table.paths;
            let (file, relays) =
                (paths.file.as_deref().map_or("", String::as_str), plan.directory.relays.len());
            let cause = format!(
                "system `{}`: `paths.file` = \"{file}\" names none of the network's {relays} relays",
                system.name
            );
            let cure = "give a bandwidth file of the same network and date as the consensus";
            return Err(scenario.source.error(paths.policy.span(), cause, cure));
        }
        Selector::new(&plan.directory, &system.paths).map_err(|none| {
            let cause = format!("system `{}`: {none}", system.name);
            let whole = scenario.file.tor.as_ref().is_none_or(|tor| tor.fraction >= 1.0);
            let cure = match none.position {
                "middle" if whole => "add relays, or change the system's `paths`",
                "exit" if whole => {
                    "give a network with relays that have the flag Exit, or change the system's `paths`"
                }
                _ if whole => {
                    "give a network with relays that have the flag Guard, or change the system's `paths`"
                }
                _ => "raise [tor] `fraction`, or change the system's `paths`",
            };
            scenario.source.error(table.span(), cause, cure)
        })?;
    }
    Ok(())
}

/// Checks that no system says how to draw relays, of a network where no user draws them.
fn check_undrawn(scenario: &Scenario) -> Result<(), InputError> {
    for (system, table) in scenario.systems.iter().zip(&scenario.file.system) {
        if let Some(key) = undrawn(&table.paths, system.paths.policy.comparison().is_some()) {
            let why = match scenario.file.random {
                Some(_) => "[random] draws every user's relays",
                None => "every user has a `path`",
            };
            let cause = format!("system `{}`: `paths.{key}` has no effect: {why}", system.name);
            let cure = "remove it, or add users that draw relays from named ones or from [tor]";
            return Err(scenario.source.error(table.span(), cause, cure));
        }
    }
    Ok(())
}

/// Why a system's clients would not compare paths although its policy does, and what to do.
fn no_comparison(plan: &Plan, system: &System) -> Option<(&'static str, &'static str)> {
    let rule = system.paths.policy.comparison()?;
    let draws = |user: &UserPlan| matches!(user.route, Route::Drawn { onion_service: false, .. });
    if !plan.users.iter().any(draws) {
        let why = "no user draws paths to an exit";
        return Some((why, "add users without `path` and `onion-service`, or use policy = \"tor\""));
    }
    if rule.probes > 0 && system.conflux.is_some() {
        let why = "`conflux` uses two circuits at once, and so does not choose one";
        return Some((why, "drop `conflux`, or use policy = \"latency-aware\""));
    }
    let relays = &plan.directory.relays;
    let delays = relays.iter().flat_map(|from| relays.iter().map(|to| (from.id, to.id)));
    let mut delays = delays.filter(|(from, to)| from != to).map(|(from, to)| plan.delay(from, to));
    let first = delays.next();
    if rule.probes == 0 && delays.all(|delay| Some(delay) == first) {
        let why = "all relays are equally far from each other";
        return Some((why, "set [underlay] `file` or the relays' `access-delay`, or use policy = \"tor\""));
    }
    None
}

/// Checks that a run can be divided, if `processes` requests it.
fn check_division(scenario: &Scenario, plan: &Plan) -> Result<(), InputError> {
    if plan.processes <= 1 {
        return Ok(());
    }
    for system in &scenario.systems {
        if let Some(what) = obstacle(plan, system) {
            let cause = format!("system `{}`: a run with {what} cannot be divided", system.name);
            let cure = "drop `processes`, or the feature named above";
            return Err(scenario.source.error(scenario.file.processes.span(), cause, cure));
        }
    }
    Ok(())
}

/// Checks that some relay's links carry trains, if a system sends them. Every connection has an end at a relay.
fn check_trains(scenario: &Scenario, plan: &Plan) -> Result<(), InputError> {
    let mut relays = plan.hosts.iter().filter(|host| matches!(host.role, Role::Relay(_)));
    let carries = relays.any(HostPlan::carries_trains);
    for (system, table) in scenario.systems.iter().zip(&scenario.file.system) {
        if system.tcp.fidelity == Fidelity::Train && !carries {
            let cause = format!(
                "system `{}`: tcp: `fidelity` = \"train\" has no effect: no relay has links with a plain queue",
                system.name
            );
            let cure = "drop `fidelity`, or give links a `queue` such as \"1000 packets\" or \"unlimited\"";
            return Err(scenario.source.error(table.span(), cause, cure));
        }
    }
    Ok(())
}

/// A value drawn uniformly from a range of spans.
fn draw(range: &Between<Span>, draws: &mut tidegate_control::random::Random) -> Span {
    Span::from_secs_f64(draws.uniform(range.low.as_secs_f64(), range.high.as_secs_f64()))
}

struct Users<'a> {
    scenario: &'a Scenario,
    plans: Vec<UserPlan>,
    names: Vec<String>,
    /// Traffic and circuit lifetime by name, built once because Markov models are large.
    kinds: BTreeMap<&'a str, (Traffic, Span)>,
}

impl<'a> Users<'a> {
    fn add(
        &mut self,
        user: &'a UserFile,
        user_name: String,
        (route, second_path): (Route, Option<[u32; 3]>),
        (host, server): (u32, u32),
        start: Span,
        rests: Vec<(Time, Time)>,
    ) {
        let name = user.traffic.get_ref().as_str();
        if !self.kinds.contains_key(name) {
            let kind = self.scenario.file.traffic_of(name).expect("checked");
            let traffic = match self.scenario.inputs.models.get(name) {
                Some(model) => Traffic::Markov(Arc::clone(model), kind.timeout.0),
                None => traffic::fetch(&kind),
            };
            self.kinds.insert(name, (traffic, kind.circuit_lifetime));
        }
        let (traffic, circuit_lifetime) = self.kinds[name].clone();
        self.plans.push(UserPlan {
            host,
            class: name.to_owned(),
            route,
            second_path,
            servers: vec![server],
            traffic,
            start: Time::ZERO + start,
            rests,
            stop: Time::ZERO + user.stop.unwrap_or(self.scenario.duration()),
            circuit_lead: user.circuit_lead,
            circuit_lifetime,
        });
        self.names.push(user_name);
    }
}

/// The route of a user with drawn relays.
fn drawn(user: &UserFile) -> Route {
    Route::Drawn { keep_guard: user.keep_guard, onion_service: user.onion_service }
}

/// Rests of the user at `rank` (0 to 1): the parts of the day with a share of `awake` below the rank.
fn rests(user: &UserFile, rank: f64, duration: Span) -> Vec<(Time, Time)> {
    let mut rests: Vec<(Time, Time)> = Vec::new();
    let parts = user.awake.len() as u64;
    for part in 0.. {
        if parts == 0 || part * user.day.0 / parts >= duration.0 {
            break;
        }
        let (from, until) = (Time(part * user.day.0 / parts), Time((part + 1) * user.day.0 / parts));
        match rests.last_mut() {
            _ if *user.awake[(part % parts) as usize] > rank => {}
            Some(last) if last.1 == from => last.1 = until,
            _ => rests.push((from, until)),
        }
    }
    rests
}

/// The name of one of a group of users.
fn user_name(user: &UserFile, count: u32, number: u32) -> String {
    let name = user.name.get_ref();
    if count == 1 { name.clone() } else { format!("{name}{}", number + 1) }
}
