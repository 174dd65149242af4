//! Checks of a scenario file that serde cannot do: ranges, references, combinations.

use std::collections::BTreeSet;
use std::ops::Range;

use serde_json::Value;
use tidegate_control::keys::Wrong;
use tidegate_control::units::{Rate, Span};
use tidegate_data::country::Country;
use tidegate_proto::switching::Form;
use tidegate_sim::plan::System;

use super::file::{Name, Placed, ScenarioFile, SystemFile, file_name_character};
use super::quantity::{Between, Size, Timeout};
use super::tables::{BandwidthFile, HostFile, Sampling};
use super::users::{FaultKind, TrafficFile, UserFile};
use crate::input::{InputError, SourceFile, suggest};
use crate::network::builtin::YEARS;
use crate::network::inputs::Inputs;
use crate::traffic;

/// Relays of two paths to the same exit.
const LEAST_FOR_TWO_PATHS: usize = 5;

/// Limit on users; a larger number is most likely a mistake.
const MAX_ENTITIES: u32 = 1_000_000;

pub(super) fn check(file: &ScenarioFile, source: &SourceFile) -> Result<Vec<System>, InputError> {
    let fail = |span: Range<usize>, cause: &str, cure: &str| Err(source.error(span, cause, cure));
    let (warmup, sample) = (&file.warmup, &file.sample);
    if **warmup >= file.duration {
        return fail(
            warmup.span(),
            "`warmup` is not shorter than `duration`: nothing is measured",
            "lower `warmup`",
        );
    }
    if file.duration.0 / sample.0 == warmup.0 / sample.0 {
        let cause = "`sample` is so long that no sample falls between `warmup` and the end";
        return fail(sample.span(), cause, "lower `sample`, for example to \"10 ms\"");
    }
    // Each sample costs one event per relay.
    if file.duration.0 / sample.0 > 10_000_000 {
        return fail(
            sample.span(),
            "`sample` divides `duration` into more than 10,000,000 intervals",
            "raise `sample`, for example to \"10 ms\"",
        );
    }
    check_folder_name(&file.name, source)?;
    check_hosts(file, source)?;
    check_users(file, source)?;
    check_churn(file, source)?;
    check_faults(file, source)?;
    check_systems(file, source)
}

/// Checks that hosts' locations exist in the underlay's file.
pub(super) fn check_locations(
    file: &ScenarioFile,
    source: &SourceFile,
    inputs: &Inputs,
) -> Result<(), InputError> {
    for host in [&file.relay, &file.server, &file.client].into_iter().flatten() {
        let Some(name) = &host.location else { continue };
        let Some(table) = &inputs.latency else {
            let cause = format!("host has the location `{}`, but the underlay has no `file`", name.get_ref());
            return Err(source.error(name.span(), cause, "set [underlay] `file`, or drop `location`"));
        };
        let known: Vec<&str> = table.locations.iter().map(|place| place.name.as_str()).collect();
        if !known.contains(&name.get_ref().as_str()) {
            let cause = format!("the underlay has no location `{}`", name.get_ref());
            return Err(source.error(name.span(), cause, suggest(name.get_ref(), &known)));
        }
    }
    Ok(())
}

fn check_systems(file: &ScenarioFile, source: &SourceFile) -> Result<Vec<System>, InputError> {
    if file.system.is_empty() {
        return Err(InputError::new(
            &source.file,
            "has no [[system]]",
            "add a [[system]] table with a `name`",
        ));
    }
    let mut names = BTreeSet::new();
    let mut systems = Vec::new();
    for system in &file.system {
        check_name(&system.name, "system", &mut names, source)?;
        systems.push(check_system(system, source)?);
        let moves = system.parts.switching.is_some_and(|rules| rules.form == Form::Circuit);
        if moves && file.user.iter().all(|user| user.path.is_some() || user.shares.is_some()) {
            let name = system.name.get_ref();
            let cause = format!(
                "system `{name}`: `switching` = \"circuit\" chooses other middles, but every user has a `path`"
            );
            let cure = "leave out the `path` of a user, or use switching = \"connection\"";
            return Err(source.error(system.span(), cause, cure));
        }
        check_conflux(file, system, source)?;
        check_first_plan(file, system, source)?;
    }
    Ok(systems)
}

/// Checks that controllers of PredicTor plan before the run ends.
fn check_first_plan(
    file: &ScenarioFile,
    system: &Placed<SystemFile>,
    source: &SourceFile,
) -> Result<(), InputError> {
    let first = system.parts.table.get("predictor").and_then(|table| table["first"].as_str());
    let first = first.map(|first| first.parse::<Span>().expect("the table is checked"));
    if system.parts.chooses("control", "predictor") && first.is_some_and(|first| first >= file.duration) {
        let name = system.name.get_ref();
        let cause =
            format!("system `{name}`: controllers first plan (`predictor.first`) after the run's end");
        return Err(source.error(system.span(), cause, "lower `predictor.first`, or raise `duration`"));
    }
    Ok(())
}

/// Checks that a system with `conflux` has users that can build a second circuit.
fn check_conflux(
    file: &ScenarioFile,
    system: &Placed<SystemFile>,
    source: &SourceFile,
) -> Result<(), InputError> {
    let second = |user: &UserFile| match &user.path {
        _ if user.shares.is_some() => false,
        Some(_) => user.second_path.is_some(),
        // The second circuit ends at the same exit, over another guard and middle.
        None => {
            let random =
                file.random.as_ref().is_none_or(|random| random.relays as usize >= LEAST_FOR_TWO_PATHS);
            let named = file.relay.is_empty() || file.relay.len() >= LEAST_FOR_TWO_PATHS;
            !user.onion_service && random && named
        }
    };
    if system.parts.conflux.is_none() || file.user.iter().any(|user| second(user)) {
        return Ok(());
    }
    let (cause, cure) = if file.user.iter().any(|user| user.path.is_some()) {
        ("every user with a `path` lacks a `second-path`", "set `second-path` of a user, or drop `conflux`")
    } else if file.user.iter().any(|user| user.onion_service) {
        ("circuits to onion services stay single", "add users without `onion-service`, or drop `conflux`")
    } else if file.random.is_some() {
        ("two paths to one exit need five relays", "raise `random.relays`, or drop `conflux`")
    } else {
        ("two paths to one exit need five relays", "add [[relay]] tables, or drop `conflux`")
    };
    let name = system.name.get_ref();
    let cause =
        format!("system `{name}`: `conflux` has no effect, because no user has a second circuit: {cause}");
    Err(source.error(system.span(), cause, cure))
}

/// Checks one `[[system]]` table and converts it for the simulator.
fn check_system(system: &Placed<SystemFile>, source: &SourceFile) -> Result<System, InputError> {
    let (tcp, parts) = (&system.tcp, &system.parts);
    let fail = |cause: &str, cure: &str| {
        Err(source.error(system.span(), format!("system `{}`: {cause}", system.name.get_ref()), cure))
    };
    if tcp.rto_min > tcp.rto_max {
        return fail(
            "tcp: `rto-min` is above `rto-max`",
            "Linux uses rto-min = \"200 ms\", rto-max = \"120 s\"",
        );
    }
    if parts.pctcp.esp_overhead >= tcp.mss {
        return fail("pctcp: `esp-overhead` is not below `tcp.mss`", "ESP in tunnel mode has \"57 B\"");
    }
    Ok(plan(system))
}

/// Converts a system for the simulator.
fn plan(file: &SystemFile) -> System {
    let parts = file.parts.clone();
    System {
        name: file.name.get_ref().clone(),
        transport: parts.transport,
        deployment: parts.pctcp.into(),
        scheduler: parts.scheduler,
        paths: Default::default(),
        balance: parts.balance,
        survey: parts.survey,
        attack: parts.attack,
        kist: parts.kist,
        connection_half_life: parts.connection_half_life,
        switching: parts.switching,
        conflux: parts.conflux,
        control: parts.control,
        other_clients: None,
        windows: parts.windows,
        tcp: file.tcp.clone(),
        output_buffer: parts.output_buffer,
        tls: file.tls,
        packaging: file.packaging,
        circuit_queue_high: parts.circuit_queue.high,
        circuit_queue_low: parts.circuit_queue.low,
    }
}

/// Checks the name of a scenario or a study, which names its folder of results.
pub(crate) fn check_folder_name(name: &str, source: &SourceFile) -> Result<(), InputError> {
    if name.chars().all(file_name_character) && !name.starts_with('.') {
        return Ok(());
    }
    let cause = format!("the name `{}` cannot be the name of a folder", name.escape_debug());
    Err(InputError::new(&source.file, cause, "use letters, digits, `-`, `_` and `.`"))
}

fn check_hosts(file: &ScenarioFile, source: &SourceFile) -> Result<(), InputError> {
    let made = usize::from(!file.relay.is_empty())
        + usize::from(file.random.is_some())
        + usize::from(file.tor.is_some());
    if made != 1 {
        let cause = if made == 0 { "has no relays" } else { "has relays of more than one kind" };
        let cure = "give one of: [[relay]] tables, a [random] table, a [tor] table";
        return Err(InputError::new(&source.file, cause, cure));
    }
    let mut names = BTreeSet::new();
    let relays: Vec<&str> = file.relay.iter().map(|host| host.name.get_ref().as_str()).collect();
    for (hosts, kind) in [(&file.relay, "relay"), (&file.server, "server"), (&file.client, "client")] {
        for host in hosts {
            check_name(&host.name, kind, &mut names, source)?;
            // Relays are numbered in file order, so a shared machine must come first.
            let above = hosts.iter().take_while(|other| !std::ptr::eq(*other, host));
            let above = above.filter(|other| other.at.is_none()).map(|other| other.name.get_ref().as_str());
            let above: Vec<&str> = above.collect();
            check_host(host, kind, if kind == "relay" { &above } else { &relays }, source)?;
        }
    }
    if let Some(tor) = &file.tor
        && !YEARS.contains(&tor.year)
    {
        let cure = "use 2011 or 2024, or name a `consensus`";
        return Err(source.error(tor.year.span(), "there is no built-in model of this `year`", cure));
    }
    if let Some(tor) = &file.tor
        && let (Some(name), None) = (&tor.microdescriptors, &tor.consensus)
    {
        let cause = "`microdescriptors` needs the `consensus` that names them";
        return Err(source.error(name.span(), cause, "set `consensus` too"));
    }
    if let Some(tor) = &file.tor
        && *tor.sample.get_ref() == Sampling::Balanced
        && tor.fraction >= 1.0
    {
        let cause = "`sample` = \"balanced\" has no effect: the network has every relay (`fraction` is 1)";
        return Err(source.error(tor.sample.span(), cause, "drop `sample`, or lower `fraction`"));
    }
    if let Some(random) = &file.random {
        random.bandwidth.as_ref().map_or(Ok(()), |bucket| check_bandwidth(bucket, source))?;
        if random.bandwidth.is_some() && random.bandwidth_share < 1.0 {
            let cause = "[random]: `bandwidth` and `bandwidth-share` both set the token bucket";
            return Err(source.error(random.span(), cause, "drop one of the two"));
        }
        let to_unlimited = |link: &Between<Rate>| link.high == Rate::UNLIMITED && link.low != link.high;
        if [Some(&random.relay_link), random.end_link.as_ref()].into_iter().flatten().any(to_unlimited) {
            let cause = "the range of a link's rate ends at unlimited";
            return Err(source.error(random.span(), cause, "give two finite rates, or one rate"));
        }
    }
    Ok(())
}

fn check_host(host: &HostFile, kind: &str, relays: &[&str], source: &SourceFile) -> Result<(), InputError> {
    let name = &host.name;
    let fail = |cause: &str, cure: &str| {
        Err(source.error(name.span(), format!("{kind} `{}` {cause}", name.get_ref()), cure))
    };
    if let Some(at) = &host.at {
        if kind == "relay" && host.link.or(host.up).or(host.down).is_some() {
            return fail("has both `at` and a link of its own", "drop `at`, or `link`, `up` and `down`");
        }
        // A relay can share the machine of a relay further up in the file that has its own links.
        if !relays.contains(&at.get_ref().as_str()) {
            let cause = format!("there is no relay `{}`", at.get_ref());
            return Err(source.error(at.span(), cause, suggest(at.get_ref(), relays)));
        }
    } else if host.link.is_none() && (host.up.is_none() || host.down.is_none()) {
        return fail("has no link", "give `link`, or `up` and `down`, such as \"10 Mbit/s\"");
    }
    if kind != "relay" && host.cell_cost > Span::ZERO {
        return fail("has a `cell-cost`", "only relays process cells: drop it");
    }
    match &host.bandwidth {
        Some(_) if kind != "relay" => fail("has a token bucket", "only relays have `bandwidth`"),
        Some(bucket) => check_bandwidth(bucket, source),
        None => Ok(()),
    }
}

fn check_bandwidth(bucket: &BandwidthFile, source: &SourceFile) -> Result<(), InputError> {
    if *bucket.rate == Rate::UNLIMITED {
        return Err(source.error(
            bucket.rate.span(),
            "`rate` of a token bucket is unlimited",
            "give a finite rate, or drop `bandwidth`",
        ));
    }
    Ok(())
}

/// Checks which keys are written beside each other, before defaults hide which ones are.
pub(super) fn check_written(document: &Value) -> Result<(), Wrong> {
    for (number, user) in document["user"].as_array().into_iter().flatten().enumerate() {
        if user.get("of-tor").is_some() && user.get("count").is_some() {
            return Err(Wrong {
                path: ["user", &number.to_string(), "count"].map(str::to_owned).into(),
                at_key: true,
                cause: "`count` has no effect beside `of-tor`, which sets the number of users".into(),
                cure: "drop one of the two".into(),
            });
        }
    }
    Ok(())
}

fn check_users(file: &ScenarioFile, source: &SourceFile) -> Result<(), InputError> {
    if file.user.is_empty() {
        return Err(InputError::new(
            &source.file,
            "has no [[user]]",
            "add a [[user]] table with `name` and `traffic`",
        ));
    }
    for kind in file.traffic.values() {
        check_traffic(kind, source)?;
    }
    let mut names = BTreeSet::new();
    let mut total = 0u32;
    for spanned in &file.user {
        let user = spanned.get_ref();
        check_name(&user.name, "user", &mut names, source)?;
        if let (Some(of_tor), None) = (&user.of_tor, &file.tor) {
            return Err(source.error(of_tor.span(), "`of-tor` needs a [tor] table", "use `count`"));
        }
        // With `of-tor`, the count depends on `fraction` and `load`.
        let count = file.users(user);
        total = total.saturating_add(count);
        if count == 0 || total > MAX_ENTITIES {
            return Err(source.error(
                spanned.span(),
                "the scenario has no users here, or more than 1,000,000 in total",
                "change `count`",
            ));
        }
        let traffic = user.traffic.get_ref();
        if file.traffic_of(traffic).is_none() {
            let known: Vec<&str> =
                traffic::BUILT_IN.iter().copied().chain(file.traffic.keys().map(String::as_str)).collect();
            let cause = format!("there is no traffic `{traffic}`");
            return Err(source.error(user.traffic.span(), cause, suggest(traffic, &known)));
        }
        check_route(file, user, spanned.span(), source)?;
        if let Some(share) = user.awake.iter().find(|share| !(0.0..=1.0).contains(share.get_ref())) {
            return Err(source.error(
                share.span(),
                "a value of `awake` is outside 0 to 1",
                "give shares from 0 to 1",
            ));
        }
        if user.onion_service && (user.path.is_some() || user.shares.is_some() || file.random.is_some()) {
            let cause = "`onion-service` needs drawn relays, from a consensus or among named ones";
            return Err(source.error(spanned.span(), cause, "drop `path`, `shares` or [random]"));
        }
        if user.stop.is_some_and(|stop| stop <= user.start.high) {
            return Err(source.error(spanned.span(), "`stop` is not after `start`", "raise `stop`"));
        }
        if user.start.low >= file.duration {
            let cause = format!("`start` is not before the end of the run, {}", file.duration);
            return Err(source.error(spanned.span(), cause, "lower `start`, or raise `duration`"));
        }
        check_place(file, spanned, source)?;
    }
    Ok(())
}

/// Checks `countries` and `own-server` of a user.
fn check_place(file: &ScenarioFile, user: &Placed<UserFile>, source: &SourceFile) -> Result<(), InputError> {
    let known = |code: &str| Country::from_code(code).is_some();
    if let Some(code) = user.countries.iter().find(|code| !known(code.get_ref())) {
        let cause = format!("unknown country `{}`", code.get_ref().escape_debug());
        return Err(source.error(code.span(), cause, "give two-letter codes: countries = [\"nl\", \"us\"]"));
    }
    if (user.own_server || !user.countries.is_empty()) && (file.tor.is_none() || user.path.is_some()) {
        let cause = "`countries` and `own-server` need a [tor] table and a user without `path`";
        return Err(source.error(user.span(), cause, "drop these keys, or add [tor] and drop `path`"));
    }
    Ok(())
}

fn check_route(
    file: &ScenarioFile,
    user: &UserFile,
    span: Range<usize>,
    source: &SourceFile,
) -> Result<(), InputError> {
    let known = |hosts: &[HostFile], name: &Name, kind: &str| {
        let names: Vec<&str> = hosts.iter().map(|host| host.name.get_ref().as_str()).collect();
        if names.contains(&name.get_ref().as_str()) {
            return Ok(());
        }
        let cause = format!("there is no {kind} `{}`", name.get_ref());
        let cure = if names.is_empty() {
            format!("add a [[{kind}]] table")
        } else {
            suggest(name.get_ref(), &names)
        };
        Err(source.error(name.span(), cause, cure))
    };
    if let Some(client) = &user.client {
        known(&file.client, client, "client")?;
    }
    if let Some(server) = &user.server {
        known(&file.server, server, "server")?;
    }
    if let Some(name) = &user.shares {
        return check_shared(file, user, name, source);
    }
    let Some(path) = &user.path else {
        if let Some(second) = &user.second_path {
            return Err(source.error(second[0].span(), "`second-path` needs a `path`", "set `path` too"));
        }
        // Generated networks choose relays, client and server themselves.
        return if file.relay.is_empty() {
            Ok(())
        } else if file.relay.len() < 3 {
            Err(source.error(
                span,
                "a user without `path` needs at least three relays",
                "add [[relay]] tables, or set `path`",
            ))
        } else {
            known_ends(user, span, source)
        };
    };
    for path in std::iter::once(path).chain(&user.second_path) {
        for relay in path {
            known(&file.relay, relay, "relay")?;
        }
        let named = |hop: usize| path[hop].get_ref();
        if named(0) == named(1) || named(1) == named(2) || named(0) == named(2) {
            let cure = "name three different relays";
            return Err(source.error(path[0].span(), "the path contains a relay twice", cure));
        }
    }
    if let Some(second) = &user.second_path {
        let shares = |hop: usize| path[..2].iter().any(|relay| relay.get_ref() == second[hop].get_ref());
        if second[2].get_ref() != path[2].get_ref() || shares(0) || shares(1) {
            let cause = "`second-path` must end at the exit of `path` and share no other relay with it";
            return Err(source.error(
                second[0].span(),
                cause,
                "name another guard and middle, and the same exit",
            ));
        }
    }
    Ok(())
}

/// Checks `shares`: the other user has circuits of its own and the same client.
fn check_shared(
    file: &ScenarioFile,
    user: &UserFile,
    name: &Name,
    source: &SourceFile,
) -> Result<(), InputError> {
    let text = |user: &UserFile| user.name.get_ref().clone();
    // Plans refer to other users by index, so the shared user must come first.
    let before: Vec<&UserFile> =
        (file.user.iter().map(Placed::get_ref)).take_while(|other| text(other) != text(user)).collect();
    let names: Vec<&str> = before.iter().map(|user| user.name.get_ref().as_str()).collect();
    let Some(other) = before.iter().find(|other| other.name.get_ref() == name.get_ref()) else {
        let cause = format!("there is no user `{}` above", name.get_ref());
        return Err(source.error(name.span(), cause, suggest(name.get_ref(), &names)));
    };
    let wrong = if other.shares.is_some() {
        "which has no circuits of its own"
    } else if user.path.is_some() {
        "but also has a `path`"
    } else if other.count != Some(1) {
        "which has a `count` above one"
    } else if user.client.is_none()
        || user.server.is_none()
        || user.client.as_ref().map(Placed::get_ref) != other.client.as_ref().map(Placed::get_ref)
    {
        "but does not name the same `client` and a `server`"
    } else {
        return Ok(());
    };
    let cause = format!("`{}` shares the circuits of `{}`, {wrong}", user.name.get_ref(), name.get_ref());
    Err(source.error(
        name.span(),
        cause,
        "share the circuits of one user at the same client, and name a `server`",
    ))
}

/// Checks that a user with drawn relays among named hosts names its client and server.
fn known_ends(user: &UserFile, span: Range<usize>, source: &SourceFile) -> Result<(), InputError> {
    if user.client.is_some() && user.server.is_some() {
        return Ok(());
    }
    Err(source.error(span, "a user without `path` needs a `client` and a `server`", "set both keys"))
}

fn check_traffic(kind: &TrafficFile, source: &SourceFile) -> Result<(), InputError> {
    if kind.requests.iter().any(|request| request.size != Size::ENDLESS && request.size.0 > 1 << 50) {
        return Err(InputError::new(
            &source.file,
            "the `size` of a request is above 1 PiB",
            "lower it, or write \"endless\"",
        ));
    }
    let models = [&kind.stream_model, &kind.packet_model];
    match (kind.requests.is_empty(), models.iter().filter(|model| model.is_some()).count()) {
        (false, 0) | (true, 2) => Ok(()),
        _ => Err(InputError::new(
            &source.file,
            "a [traffic] table needs either `requests` or both models",
            "set `requests`, or `stream-model` and `packet-model`",
        )),
    }
}

fn check_name<'a>(
    name: &'a Name,
    kind: &str,
    seen: &mut BTreeSet<&'a str>,
    source: &SourceFile,
) -> Result<(), InputError> {
    let text = name.get_ref().as_str();
    if text.is_empty() || text.len() > 64 || !text.chars().all(file_name_character) || text.starts_with('.') {
        let cause = format!(
            "`{}` is not a valid name for a {kind}",
            text.chars().take(80).collect::<String>().escape_debug()
        );
        return Err(source.error(name.span(), cause, "use up to 64 letters, digits, `-`, `_` and `.`"));
    }
    if !seen.insert(text) {
        return Err(source.error(
            name.span(),
            format!("the name `{text}` is used twice"),
            "choose another name",
        ));
    }
    Ok(())
}

/// Checks that churn comes with a build timeout: a circuit over a relay that is down never completes.
fn check_churn(file: &ScenarioFile, source: &SourceFile) -> Result<(), InputError> {
    let Some(churn) = &file.relay_churn else { return Ok(()) };
    for system in &file.system {
        let paths = &system.paths;
        if !paths.learn_build_timeout && paths.build_timeout == Timeout::NEVER {
            let name = system.name.get_ref();
            let cause = format!("`relay-churn` is set, and system `{name}` has no build timeout");
            let cure = "set `paths.learn-build-timeout = true` or `paths.build-timeout` of the system";
            return Err(source.error(churn.span(), cause, cure));
        }
    }
    Ok(())
}

/// Checks the hosts and times of all faults.
fn check_faults(file: &ScenarioFile, source: &SourceFile) -> Result<(), InputError> {
    let hosts: Vec<&str> = [&file.relay, &file.server, &file.client]
        .into_iter()
        .flatten()
        .map(|host| host.name.get_ref().as_str())
        .collect();
    for fault in &file.fault {
        for name in fault.between.iter().flatten().chain(&fault.host) {
            // The names of generated relays are known only once a network is drawn.
            if !hosts.is_empty() && !hosts.contains(&name.get_ref().as_str()) {
                let cause = format!("there is no host `{}`", name.get_ref());
                return Err(source.error(name.span(), cause, suggest(name.get_ref(), &hosts)));
            }
        }
        if let Some(missing) = fault.missing() {
            let cause = format!("a fault of this kind needs the key `{missing}`");
            return Err(source.error(fault.span(), cause, format!("add `{missing}`")));
        }
        if fault.until.is_some_and(|until| until <= fault.from) {
            return Err(source.error(fault.span(), "`until` is not after `from`", "raise `until`"));
        }
        if fault.from >= file.duration {
            let cause = "the fault begins after the run's end";
            return Err(source.error(fault.span(), cause, "lower `from`, or raise `duration`"));
        }
        if fault.kind == FaultKind::Byzantine
            && !file.system.iter().any(|s| s.parts.chooses("control", "predictor"))
        {
            let cause = "a byzantine fault has no effect: no system has `control` = \"predictor\"";
            return Err(source.error(fault.span(), cause, "drop it, or add such a system"));
        }
    }
    Ok(())
}
