//! Keys without effect, because something else in the file leaves them nothing to do: they are refused. Their defaults are
//! accepted, because a scenario that the tool wrote has every default.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde_json::{Value, json};
use tidegate_control::balance::{BALANCES, Trick};
use tidegate_control::keys::Wrong;
use tidegate_control::units::Span;
use tidegate_sim::plan::Transport;
use tidegate_sim::tcp::Congestion;

use super::file::{ScenarioFile, SystemFile};
use super::paths::PathsFile;
use super::quantity::{Between, Queue, Timeout};
use super::tables::{HostFile, TorFile, Underlay};
use super::users::{self, FaultFile, FaultKind, UserFile};

/// Why a key of a system has no effect.
struct Reason {
    /// The other key, and why it leaves nothing to do.
    with: String,
    /// What to do.
    cure: String,
}

/// Keys of a system that have no effect in some systems.
struct Rule {
    keys: &'static [&'static str],
    /// The reason, if the keys have no effect in this system.
    idle: fn(&SystemFile) -> Option<Reason>,
}

const RULES: &[Rule] = &[
    Rule { keys: &["attack.trick"], idle: trick },
    Rule { keys: &["attack.factor"], idle: factor },
    Rule { keys: &["attack.serves"], idle: serves },
    Rule { keys: &["survey.trusted"], idle: trusted },
    Rule { keys: &["survey.duration"], idle: duration },
    Rule { keys: &["survey.users", "survey.files"], idle: no_survey },
    Rule { keys: &["output-buffer.high", "output-buffer.low"], idle: output_buffer },
    Rule { keys: &["kist.buffer-factor", "kist.counts-unsent"], idle: sockets },
    Rule { keys: &["tls.record-cells", "tls.record-overhead"], idle: records },
    Rule { keys: &["tls.standing"], idle: standing },
    Rule { keys: &["paths.least-build-timeout"], idle: least_build_timeout },
    Rule { keys: &["paths.build-timeout"], idle: build_timeout },
    Rule {
        keys: &["windows.circuit", "windows.circuit-increment", "windows.stream", "windows.stream-increment"],
        idle: fixed_windows,
    },
    Rule { keys: &["tcp.idle-restart", "tcp.validate-window"], idle: congestion },
    Rule { keys: &["tcp.quick-acks"], idle: quick_acks },
];

/// The keys of a system that sets only its name.
static USUAL: LazyLock<Value> = LazyLock::new(|| {
    let usual: SystemFile = toml::from_str("name = \"x\"").expect("all other keys have defaults");
    serde_json::to_value(usual).expect("systems can be written")
});

/// Checks the keys of a file; `document` is the file as written, with its systems expanded.
pub(super) fn check(file: &ScenarioFile, document: &Value) -> Result<(), Wrong> {
    check_systems(file, document)?;
    let all = underlay(file).into_iter().chain(tor(file)).chain(hosts(file)).chain(users(file));
    let all = all.chain(traffic(file)).chain(faults(file)).chain(half_life(file, document));
    let all = all.chain(idle_balances(file, document));
    match all.into_iter().find(|key| key.is_idle) {
        None => Ok(()),
        Some(Key { path, why, cure, .. }) => {
            let key = path.last().cloned().unwrap_or_default();
            let cause = format!("`{key}` has no effect {why}");
            Err(Wrong { path, at_key: true, cause, cure: cure.into() })
        }
    }
}

/// A key outside of systems.
struct Key {
    /// Whether it is given, differs from its default, and has no effect.
    is_idle: bool,
    path: Vec<String>,
    why: String,
    cure: &'static str,
}

impl Key {
    fn new(is_idle: bool, path: &[&str], why: &str, cure: &'static str) -> Key {
        Key { is_idle, path: path.iter().map(|part| (*part).to_owned()).collect(), why: why.into(), cure }
    }
}

/// Refuses a key of systems that has no effect in any of them. A key of `[every-system]` may be for only some.
fn check_systems(file: &ScenarioFile, document: &Value) -> Result<(), Wrong> {
    let tables = file.system.iter().map(|system| serde_json::to_value(system.get_ref()));
    let tables: Vec<Value> = tables.map(|table| table.expect("systems can be written")).collect();
    for (rule, key) in RULES.iter().flat_map(|rule| rule.keys.iter().map(move |key| (rule, *key))) {
        let pointer = format!("/{}", key.replace('.', "/"));
        let given = file.system.iter().zip(&tables).filter_map(|(system, table)| {
            let value = table.pointer(&pointer)?;
            let is_given = Some(value) != USUAL.pointer(&pointer) && !is_elsewhere(system, key);
            is_given.then_some((system, value))
        });
        let idle: Option<Vec<_>> =
            given.map(|(system, value)| Some((system, value, (rule.idle)(system)?))).collect();
        let Some((system, value, Reason { with, cure })) = idle.and_then(|idle| idle.into_iter().next())
        else {
            continue;
        };
        let (name, number) = (system.name.get_ref(), number(system, document));
        let path = ["system", &number].into_iter().chain(key.split('.'));
        return Err(Wrong {
            path: path.map(str::to_owned).collect(),
            at_key: false,
            cause: format!("system `{name}`: `{key}` = {value} has no effect with {with}"),
            cure,
        });
    }
    Ok(())
}

/// The place of a system in the list of a document.
fn number(system: &SystemFile, document: &Value) -> String {
    let systems = document["system"].as_array().into_iter().flatten();
    let number = systems.map(|table| &table["name"]).position(|other| other == system.name.get_ref());
    number.unwrap_or(0).to_string()
}

/// Whether another rule is about this key of this system.
fn is_elsewhere(system: &SystemFile, key: &str) -> bool {
    // Only a notice names the tables of parts that a system does not choose: `SystemConfig::idle`.
    let of_balance = key.starts_with("attack.") || key.starts_with("survey.");
    let unchosen =
        of_balance && system.parts.balance.is_given() || key.starts_with("kist.") && !has_kist(system);
    // A scenario that the tool wrote has the values that the consensus sets.
    unchosen || system.of_consensus && ["tls.record-cells", "tls.standing"].contains(&key)
}

fn has_kist(system: &SystemFile) -> bool {
    system.of_consensus || system.parts.kist.is_some()
}

/// The balance systems, written like `"torflow"`, that meet a condition.
fn balances(with: impl Fn(&tidegate_control::balance::Asks) -> bool) -> String {
    let made =
        BALANCES.iter().map(|part| (part.name, (part.make)(&json!({})).expect("defaults are right").0));
    let names = made.filter(|(_, balance)| !balance.is_given() && with(&balance.asks()));
    names.map(|(name, _)| format!("\"{name}\"")).collect::<Vec<_>>().join(", ")
}

fn balance(system: &SystemFile) -> String {
    format!("`balance = {}`", system.parts.table["balance"])
}

fn trick(system: &SystemFile) -> Option<Reason> {
    let trick = system.parts.attack.trick;
    let why = match trick {
        _ if system.parts.balance.asks().meets(trick) => return None,
        Trick::Frame => "which does not read relays' reports of each other",
        Trick::Hold | Trick::Flood => "which does not measure relays under full load",
        Trick::None | Trick::Inflate | Trick::Refuse | Trick::Sybils => "which does not survey the network",
    };
    let met = balances(|asks| asks.meets(trick));
    Some(Reason {
        with: format!("{}, {why}", balance(system)),
        cure: format!("use another trick, or a balance that this one reaches: {met}"),
    })
}

fn factor(system: &SystemFile) -> Option<Reason> {
    let idle = !system.parts.attack.trick.has_factor();
    idle.then(|| of_trick(system, "remove `factor`, or use a trick that has one, such as \"inflate\""))
}

fn serves(system: &SystemFile) -> Option<Reason> {
    let idle = system.parts.attack.trick != Trick::Refuse;
    idle.then(|| of_trick(system, "remove `serves`, or use trick = \"refuse\""))
}

fn of_trick(system: &SystemFile, cure: &str) -> Reason {
    let trick = &system.parts.table["attack"]["trick"];
    Reason { with: format!("`attack.trick = {trick}`"), cure: cure.into() }
}

fn trusted(system: &SystemFile) -> Option<Reason> {
    let idle = !system.parts.balance.asks().trusted;
    idle.then(|| Reason {
        with: format!("{}, which does not ask whom to trust", balance(system)),
        cure: format!("remove `trusted`, or use balance = {}", balances(|asks| asks.trusted)),
    })
}

fn duration(system: &SystemFile) -> Option<Reason> {
    let asks = system.parts.balance.asks();
    asks.measurements.map_or_else(
        || no_survey(system),
        |_| {
            Some(Reason {
                with: format!("{}: its rounds last as long as the measurements", balance(system)),
                cure: "remove `duration`, or change `flashflow.seconds`".into(),
            })
        },
    )
}

fn no_survey(system: &SystemFile) -> Option<Reason> {
    (system.parts.balance.asks().rounds == 0).then(|| Reason {
        with: format!("{}, which does not survey the network", balance(system)),
        cure: "remove it, or use another balance".into(),
    })
}

fn output_buffer(system: &SystemFile) -> Option<Reason> {
    let parts = &system.parts;
    // Switching compares the buffers, and QUIC limits its streams by them. A consensus may do without KIST.
    let uses = system.of_consensus || parts.switching.is_some() || parts.transport == Transport::Quic;
    let idle = parts.kist.is_some() && !uses;
    idle.then(|| Reason {
        with: "`channel-scheduler = \"kist\"`, which writes what the socket sends at once".into(),
        cure: "remove it, or set channel-scheduler = \"vanilla\"".into(),
    })
}

/// Whether every connection between relays is QUIC's.
fn is_quic(system: &SystemFile) -> bool {
    system.parts.transport == Transport::Quic && system.parts.pctcp.upgraded == 1.0
}

fn sockets(system: &SystemFile) -> Option<Reason> {
    is_quic(system).then(|| Reason {
        with: "`transport = \"quic\"`, which has no socket buffers of the kernel".into(),
        cure: "remove it, or use transport = \"vanilla\" or \"pctcp\"".into(),
    })
}

fn records(system: &SystemFile) -> Option<Reason> {
    is_quic(system).then(|| Reason {
        with: "`transport = \"quic\"`, which has its own packets instead of TLS records".into(),
        cure: "remove it, or use transport = \"vanilla\" or \"pctcp\"".into(),
    })
}

fn standing(system: &SystemFile) -> Option<Reason> {
    let shared = matches!(system.parts.transport, Transport::Vanilla | Transport::Quic);
    (!shared).then(|| Reason {
        with: "`transport = \"pctcp\"`, where circuits open connections of their own".into(),
        cure: "remove it, or use transport = \"vanilla\" or \"quic\"".into(),
    })
}

fn least_build_timeout(system: &SystemFile) -> Option<Reason> {
    (!system.paths.learn_build_timeout).then(|| Reason {
        with: "`paths.learn-build-timeout = false`".into(),
        cure: "remove it, or set learn-build-timeout = true".into(),
    })
}

fn build_timeout(system: &SystemFile) -> Option<Reason> {
    system.paths.learn_build_timeout.then(|| Reason {
        with: "`paths.learn-build-timeout = true`".into(),
        cure: "remove it, or set learn-build-timeout = false".into(),
    })
}

fn fixed_windows(system: &SystemFile) -> Option<Reason> {
    let mixed = system.of_consensus || system.old_clients > 0.0 || system.other_clients.is_some();
    // PredicTor without windows sends no SENDMEs at all; its published scenarios have the windows of the other systems.
    let has_own = system.parts.control.window().is_some_and(|window| window.sendme_increment() < u32::MAX);
    let idle = !mixed && has_own;
    idle.then(|| Reason {
        with: format!("`control = {}`, which has a window of its own", system.parts.table["control"]),
        cure: "remove it, use control = \"windows\", or give a share of the clients fixed windows (`old-clients`)".into(),
    })
}

fn congestion(system: &SystemFile) -> Option<Reason> {
    (system.tcp.congestion == Congestion::None).then(|| Reason {
        with: "`tcp.congestion = \"none\"`, which has no congestion window".into(),
        cure: "remove it, or use another congestion control".into(),
    })
}

fn quick_acks(system: &SystemFile) -> Option<Reason> {
    (system.tcp.delayed_ack == Span::ZERO).then(|| Reason {
        with: "`tcp.delayed-ack = \"0 s\"`, by which all acknowledgements are quick".into(),
        cure: "remove it, or set `delayed-ack`".into(),
    })
}

/// A line for each kind of traffic that no user has.
pub(super) fn unused(file: &ScenarioFile) -> impl Iterator<Item = String> {
    let is_used = |name: &String| file.user.iter().any(|user| user.traffic.get_ref() == name);
    let unused = file.traffic.keys().filter(move |name| !is_used(name));
    unused.map(|name| format!("`traffic.{name}` has no effect here: no user has this traffic"))
}

/// A line for each attack that does not reach some of the systems that have it; [`check`] refuses one that reaches none.
pub(super) fn unreached(file: &ScenarioFile) -> Vec<String> {
    let mut by_trick: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for system in file.system.iter().filter(|system| !system.parts.balance.is_given()) {
        if trick(system).is_some() {
            let name = format!("`{}`", system.name.get_ref());
            by_trick.entry(system.parts.table["attack"]["trick"].to_string()).or_default().push(name);
        }
    }
    let line = |(trick, names): (String, Vec<String>)| {
        format!("`attack.trick` = {trick} does not reach {}: their relays are honest", names.join(", "))
    };
    by_trick.into_iter().map(line).collect()
}

fn underlay(file: &ScenarioFile) -> Vec<Key> {
    let (given, usual) = (&file.underlay, Underlay::default());
    let (of_tor, of_file) = (file.tor.is_some(), given.file.is_some());
    let (why, cure) = match of_tor {
        true => ("beside [tor], which places hosts by country", "remove it, or set `tor.latency`"),
        false => ("beside [underlay] `file`, which has the delays", "remove one of the two"),
    };
    let delays = of_tor || of_file;
    let file = "name the file in `tor.latency`";
    vec![
        Key::new(
            of_tor && of_file,
            &["underlay", "file"],
            "beside [tor], which has latencies of its own",
            file,
        ),
        Key::new(delays && given.delay != usual.delay, &["underlay", "delay"], why, cure),
        Key::new(delays && given.fuzziness != usual.fuzziness, &["underlay", "fuzziness"], why, cure),
    ]
}

/// Whether token buckets limit relays of the network.
fn has_buckets(tor: &TorFile) -> bool {
    let limited = tor.limit_by_bucket || tor.relay_link.is_some() || tor.refill.is_some();
    // Relays of a table have the limits that their operators set.
    limited || tor.capacity.as_str() == "weight" || tor.table().is_some()
}

fn tor(file: &ScenarioFile) -> Vec<Key> {
    let Some(tor) = &file.tor else { return Vec::new() };
    let usual = TorFile::default();
    let whole = if tor.consensus.is_some() { "`consensus`" } else { "a table as `capacity`" };
    let is_model = tor.consensus.is_none() && tor.table().is_none();
    let has_cost = tor.cell_cost > Span::ZERO;
    vec![
        Key::new(
            !is_model && *tor.year != *usual.year,
            &["tor", "year"],
            &format!("beside {whole}, which is the network"),
            "remove one of the two",
        ),
        Key::new(
            !has_cost && tor.cell_cost_share != usual.cell_cost_share,
            &["tor", "cell-cost-share"],
            "without `cell-cost`: no relay has one",
            "add `cell-cost`, or remove it",
        ),
        Key::new(
            !has_buckets(tor) && tor.count_exit_connections,
            &["tor", "count-exit-connections"],
            "without token buckets, against which it counts",
            "add `limit-by-bucket = true`, or remove it",
        ),
    ]
}

/// `connection-half-life` of systems.
fn half_life(file: &ScenarioFile, document: &Value) -> Vec<Key> {
    let has_buckets = match (&file.tor, &file.random) {
        (Some(tor), _) => has_buckets(tor),
        (_, Some(random)) => random.bandwidth.is_some() || random.bandwidth_share < 1.0,
        (None, None) => file.relay.iter().any(|relay| relay.bandwidth.is_some()),
    };
    let systems = file.system.iter().map(|system| {
        let number = number(system, document);
        let path = ["system", &number, "connection-half-life"];
        let is_idle = !has_buckets && system.parts.connection_half_life.is_some();
        let cure = "give relays a token bucket (`bandwidth`, or [tor] `limit-by-bucket`), or remove it";
        Key::new(is_idle, &path, "without token buckets, at which connections wait", cure)
    });
    systems.collect()
}

/// `balance` of systems.
fn idle_balances(file: &ScenarioFile, document: &Value) -> Vec<Key> {
    let nobody_draws = !file.user.iter().any(|user| draws(file, user.get_ref()));
    let systems = file.system.iter().map(|system| {
        let path = ["system", &number(system, document), "balance"];
        let by_weight = !matches!(system.paths.policy.as_str(), "uniform" | "pinned");
        let (why, cure) = match by_weight {
            true => ("where no user draws relays by weight", "remove it, or let users draw theirs"),
            false => ("with a `paths.policy` that ignores weights", "remove it, or use another policy"),
        };
        let is_idle = (nobody_draws || !by_weight) && !system.parts.balance.is_given();
        Key::new(is_idle, &path, why, cure)
    });
    systems.collect()
}

fn hosts(file: &ScenarioFile) -> Vec<Key> {
    let mapped = file.underlay.file.is_some();
    let of = |(kind, hosts): (&str, &[HostFile])| {
        let keys = |(number, host): (usize, &HostFile)| host_keys(&[kind, &number.to_string()], host, mapped);
        hosts.iter().enumerate().flat_map(keys).collect::<Vec<Key>>()
    };
    let all: [(&str, &[HostFile]); 3] =
        [("relay", &file.relay), ("server", &file.server), ("client", &file.client)];
    all.into_iter().flat_map(of).collect()
}

fn host_keys(table: &[&str], host: &HostFile, mapped: bool) -> Vec<Key> {
    let shared = [
        ("link", host.link.is_some()),
        ("up", host.up.is_some()),
        ("down", host.down.is_some()),
        ("queue", host.queue != Queue::default()),
        ("queue-down", host.queue_down.is_some()),
        ("access-delay", host.access_delay.is_some()),
        ("location", host.location.is_some()),
    ];
    let at = host.at.as_ref().map(|at| at.get_ref().as_str());
    let why = format!("beside `at`: the host is on the machine of `{}`", at.unwrap_or_default());
    let key = |(name, is_given): (&str, bool)| {
        let path = [table, &[name]].concat();
        Key::new(at.is_some() && is_given, &path, &why, "drop it, or `at`")
    };
    let delay = Key::new(
        mapped && host.access_delay.is_some(),
        &[table, &["access-delay"]].concat(),
        "beside [underlay] `file`, which has the delays",
        "remove one of the two",
    );
    let link = Key::new(
        host.link.is_some() && host.up.is_some() && host.down.is_some(),
        &[table, &["link"]].concat(),
        "beside `up` and `down`, which replace it",
        "remove it, or one of the two",
    );
    shared.into_iter().map(key).chain([delay, link]).collect()
}

/// Whether a user's relays are drawn by the `paths` of a system.
fn draws(file: &ScenarioFile, user: &UserFile) -> bool {
    user.path.is_none() && user.shares.is_none() && file.random.is_none()
}

fn users(file: &ScenarioFile) -> Vec<Key> {
    let keys = |(number, user): (usize, &UserFile)| {
        let number = number.to_string();
        [
            Key::new(
                !user.keep_guard && !draws(file, user),
                &["user", &number, "keep-guard"],
                "for a user with given relays",
                "remove it, or let the user draw its relays",
            ),
            Key::new(
                user.awake.is_empty() && user.day != users::day(),
                &["user", &number, "day"],
                "without `awake`: all users are always active",
                "add `awake` with the shares of active users, or drop `day`",
            ),
        ]
    };
    file.user.iter().map(|user| user.get_ref()).enumerate().flat_map(keys).collect()
}

fn traffic(file: &ScenarioFile) -> Vec<Key> {
    let keys = file.traffic.iter().flat_map(|(name, kind)| {
        let timeout = !kind.requests.is_empty() && kind.timeout != Timeout::NEVER;
        let pause = kind.every.is_some() && kind.pause != Between::default();
        // Built-in kinds with an interval have a lifetime of zero.
        let lifetimes = [users::dirtiness(), Span::ZERO];
        let lifetime = kind.every.is_some() && !lifetimes.contains(&kind.circuit_lifetime);
        [
            Key::new(
                timeout,
                &["traffic", name, "timeout"],
                "with `requests`: it is the timeout of the models' streams",
                "set the `timeout` of each request",
            ),
            Key::new(
                pause,
                &["traffic", name, "pause"],
                "beside `every`, which replaces it",
                "drop one of the two",
            ),
            Key::new(
                lifetime,
                &["traffic", name, "circuit-lifetime"],
                "beside `every`: each request has its own circuit",
                "drop one of the two",
            ),
        ]
    });
    keys.collect()
}

fn faults(file: &ScenarioFile) -> Vec<Key> {
    let keys = |(number, fault): (usize, &FaultFile)| {
        let given = [
            ("between", fault.between.is_some()),
            ("host", fault.host.is_some()),
            ("probability", fault.probability.is_some()),
            ("extra", fault.extra.is_some()),
            ("lie", fault.lie.is_some()),
        ];
        let used: &[&str] = match fault.kind {
            FaultKind::Drop => &["between", "probability"],
            FaultKind::Delay => &["between", "extra"],
            FaultKind::Partition => &["between"],
            FaultKind::LinkDown | FaultKind::HostDown => &["host"],
            FaultKind::Byzantine => &["host", "lie"],
        };
        let key = |(name, is_given): (&str, bool)| {
            let path = ["fault", &number.to_string(), name];
            Key::new(is_given && !used.contains(&name), &path, "on a fault of this kind", "remove it")
        };
        given.map(key).into_iter().chain([alone(file, number, fault)])
    };
    file.fault.iter().map(|fault| fault.get_ref()).enumerate().flat_map(keys).collect()
}

/// A fault between a machine and itself.
fn alone(file: &ScenarioFile, number: usize, fault: &FaultFile) -> Key {
    let hosts = || [&file.relay, &file.server, &file.client].into_iter().flatten();
    let machine = |name: &str| {
        let host = hosts().find(|host| host.name.get_ref() == name);
        host.and_then(|host| host.at.as_ref()).map_or(name.to_owned(), |at| at.get_ref().clone())
    };
    let same =
        fault.between.as_ref().is_some_and(|[one, other]| machine(one.get_ref()) == machine(other.get_ref()));
    let path = ["fault", &number.to_string(), "between"];
    Key::new(same, &path, "between two hosts on one machine: no network is between them", "name two machines")
}

/// The first key of a system's `paths` by which nothing is drawn, if no user draws its relays. Policies that compare paths
/// are refused with a reason of their own.
pub(crate) fn undrawn(paths: &PathsFile, compares: bool) -> Option<&'static str> {
    let usual = PathsFile::default();
    let keys = [
        ("policy", paths.policy.as_str() != usual.policy.as_str() && !compares),
        ("keep-guard", paths.keep_guard != usual.keep_guard),
        ("exclude-families", paths.exclude_families != usual.exclude_families),
        ("exclude-networks", paths.exclude_networks != usual.exclude_networks),
    ];
    keys.into_iter().find(|(_, is_given)| *is_given).map(|(key, _)| key)
}
