//! What serde cannot check about a scenario file: ranges, references, combinations.

use std::collections::BTreeSet;
use std::ops::Range;

use tidegate_control::units::{Rate, Span};
use tidegate_sim::plan::{Deployment, OutputBuffer, Packaging, System, Windows};

use super::file::{File, Name, Placed, SystemFile};
use super::file_name_character;
use super::quantity::{Between, Size};
use super::tables::{BandwidthFile, HostFile};
use super::users::{TrafficFile, UserFile};
use crate::input::{InputError, Source, suggest};
use crate::network::builtin::YEARS;
use crate::network::inputs::Inputs;
use crate::registry::{self, Unknown};
use crate::traffic;

/// More hosts or users than this in one scenario are a slip of the pen.
const MAX_ENTITIES: u32 = 1_000_000;

pub(super) fn check(file: &File, source: &Source) -> Result<Vec<System>, InputError> {
    let fail = |span: Range<usize>, cause: &str, cure: &str| Err(source.error(span, cause, cure));
    let (warmup, sample) = (&file.warmup, &file.sample);
    if **warmup >= file.duration {
        return fail(warmup.span(), "nothing is left to measure after the warm-up", "make it shorter");
    }
    if file.duration.0 / sample.0 > 10_000_000 {
        return fail(sample.span(), "the sample interval is very short", "write it like \"10 ms\"");
    }
    if !file.name.chars().all(file_name_character) || file.name.starts_with('.') {
        let cause = format!("the name `{}` cannot name a folder", file.name.escape_debug());
        return Err(InputError::new(&source.file, cause, "use letters, digits, `-`, `_` and `.`"));
    }
    check_hosts(file, source)?;
    check_users(file, source)?;
    check_faults(file, source)?;
    check_systems(file, source)
}

/// Locations of hosts are places of the underlay's file.
pub(super) fn check_locations(file: &File, source: &Source, inputs: &Inputs) -> Result<(), InputError> {
    for host in [&file.relay, &file.server, &file.client].into_iter().flatten() {
        let Some(name) = &host.location else { continue };
        let Some(table) = &inputs.latency else {
            let cause = format!("`{}` is a location of no file", name.get_ref());
            return Err(source.error(name.span(), cause, "give the underlay a `file`"));
        };
        let known: Vec<&str> = table.locations.iter().map(|place| place.name.as_str()).collect();
        if !known.contains(&name.get_ref().as_str()) {
            let cause = format!("the underlay has no location `{}`", name.get_ref());
            return Err(source.error(name.span(), cause, suggest(name.get_ref(), &known)));
        }
    }
    Ok(())
}

fn check_systems(file: &File, source: &Source) -> Result<Vec<System>, InputError> {
    if file.system.is_empty() {
        return Err(InputError::new(&source.file, "has no [[system]]", "add one with a name"));
    }
    let mut names = BTreeSet::new();
    let mut systems = Vec::new();
    for system in &file.system {
        check_name(&system.name, "system", &mut names, source)?;
        systems.push(check_system(system, source)?);
    }
    Ok(systems)
}

/// One `[[system]]` table, or the `[system]` table of a relay.
///
/// # Errors
/// If it names a part that is not there, or gives one a value that it cannot work with.
pub fn check_system(spanned: &Placed<SystemFile>, source: &Source) -> Result<System, InputError> {
    let system = spanned.get_ref();
    let part = |unknown: Unknown, name: &Name| source.error(name.span(), unknown.cause, unknown.cure);
    let pctcp = &system.pctcp;
    let beyond = registry::sharing(pctcp.beyond.get_ref()).map_err(|unknown| part(unknown, &pctcp.beyond))?;
    let checked = System {
        name: system.name.get_ref().clone(),
        transport: registry::transport(system.transport.get_ref(), pctcp, beyond)
            .map_err(|unknown| part(unknown, &system.transport))?,
        kist: registry::channel_scheduler(system.channel_scheduler.get_ref(), &system.kist)
            .map_err(|unknown| part(unknown, &system.channel_scheduler))?,
        connection_half_life: system.connection_half_life.map(|half_life| half_life.0),
        switching: registry::switching(system.switching.get_ref(), &system.switch)
            .map_err(|unknown| part(unknown, &system.switching))?,
        deployment: Deployment {
            upgraded: *pctcp.upgraded.get_ref(),
            esp_overhead: u32::try_from(pctcp.esp_overhead.0.0).unwrap_or(u32::MAX),
        },
        scheduler: registry::scheduler(system.scheduler.get_ref(), system)
            .map_err(|unknown| part(unknown, &system.scheduler))?,
        control: registry::control(system.control.get_ref(), system)
            .map_err(|unknown| part(unknown, &system.control))?,
        paths: Default::default(),
        windows: Windows {
            circuit: system.windows.circuit,
            circuit_increment: system.windows.circuit_increment,
            stream: system.windows.stream,
            stream_increment: system.windows.stream_increment,
        },
        tcp: system.tcp.clone(),
        output_buffer: OutputBuffer {
            high_bytes: u32::try_from(system.output_buffer.high.0.0).unwrap_or(u32::MAX),
            low_bytes: u32::try_from(system.output_buffer.low.0.0).unwrap_or(u32::MAX),
        },
        tls_record_overhead: u32::try_from(system.tls.record_overhead.0.0).unwrap_or(u32::MAX),
        tls_record_cells: system.tls.record_cells,
        packaging: Packaging {
            cell_bytes: system.packaging.cell,
            read_bytes: u32::try_from(system.packaging.read.0.0).unwrap_or(u32::MAX),
        },
        circuit_queue_high: system.circuit_queue.high,
        circuit_queue_low: system.circuit_queue.low,
    };
    if let Some((cause, cure)) = system_mistake(system).or_else(|| system.predictor.mistake()) {
        return Err(source.error(
            spanned.span(),
            format!("system `{}`: {cause}", system.name.get_ref()),
            cure,
        ));
    }
    Ok(checked)
}

/// Values that no run could work with.
fn system_mistake(system: &SystemFile) -> Option<(&'static str, &'static str)> {
    let (windows, tcp, switch) = (&system.windows, &system.tcp, &system.switch);
    let increment_fits = |increment, window| increment > 0 && increment <= window;
    let mistakes = [
        (
            !increment_fits(windows.circuit_increment, windows.circuit)
                || !increment_fits(windows.stream_increment, windows.stream),
            "a window's increment is zero or above the window",
            "tor: 1000/100 per circuit, 500/50 per stream",
        ),
        (
            windows.circuit > 1_000_000 || windows.stream > 1_000_000,
            "a window is above 1,000,000 cells",
            "tor: 1000 per circuit, 500 per stream",
        ),
        (
            system.output_buffer.high.0.0 < 514 || system.output_buffer.low.0 > system.output_buffer.high.0,
            "the output buffer's `high` is below one cell or below `low`",
            "tor: high = \"32 KiB\", low = \"16 KiB\"",
        ),
        (
            system.circuit_queue.high == 0 || system.circuit_queue.low > system.circuit_queue.high,
            "the circuit queue's `high` is zero or below `low`",
            "tor: high = 256, low = 10",
        ),
        (
            system.tls.record_cells == 0 || system.tls.record_overhead.0.0 > 16_384,
            "a TLS record holds no cell or has more than 16 KiB of overhead",
            "record-overhead = \"22 B\", record-cells = 31",
        ),
        (
            !(1..=498).contains(&system.packaging.cell) || system.packaging.read.0.0 == 0,
            "packaging: `cell` is not in 1..=498, or `read` is zero",
            "tor: cell = 498, read = \"15936 B\"",
        ),
        (
            tcp.rto_min > tcp.rto_max,
            "tcp: `rto-min` is above `rto-max`",
            "Linux: rto-min = \"200 ms\", rto-max = \"120 s\"",
        ),
        (system.half_life.0 == Span::ZERO, "`half-life` is zero", "tor: \"30 s\""),
        (
            system.connection_half_life.is_some_and(|half_life| half_life.0 == Span::ZERO),
            "`connection-half-life` is zero",
            "the paper: \"66 s\"",
        ),
        (
            !(Span::from_millis(1)..=Span::from_secs(1)).contains(&system.kist.interval.0),
            "kist: `interval` is not in 1 ms..=1 s",
            "tor: \"10 ms\"",
        ),
        (
            !(0.0..=1000.0).contains(&system.kist.buffer_factor),
            "kist: `buffer-factor` is not in 0..=1000",
            "tor: 1.0",
        ),
        (
            !(0.0..1.0).contains(&switch.gamma),
            "switch: `gamma` is not in 0..1",
            "the weight of the previous estimate: 0.9",
        ),
        (
            !(0.0 <= switch.alpha && switch.alpha <= switch.beta && switch.beta <= 1.0),
            "switch: not 0 <= `alpha` <= `beta` <= 1",
            "the paper: alpha = 0.1, beta = 0.5",
        ),
        (
            switch.sample.0 == Span::ZERO || switch.connections == 0,
            "switch: `sample` or `connections` is zero",
            "sample = \"100 ms\", connections = 4",
        ),
        (
            !(0.0..=1.0).contains(system.pctcp.upgraded.get_ref()),
            "pctcp: `upgraded` is a share of the relays, in 0..=1",
            "1: all of them",
        ),
        (
            system.pctcp.esp_overhead.0.0 >= u64::from(tcp.mss.min(512)),
            "pctcp: `esp-overhead` leaves no room in a packet",
            "ESP with AES-GCM in tunnel mode: \"57 B\"",
        ),
    ];
    mistakes.into_iter().find(|(wrong, ..)| *wrong).map(|(_, cause, cure)| (cause, cure))
}

fn check_hosts(file: &File, source: &Source) -> Result<(), InputError> {
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
            check_host(host, kind, &relays, source)?;
        }
    }
    if let Some(tor) = &file.tor
        && !YEARS.contains(&tor.year)
    {
        let cure = "use 2011 or 2024, or name a `consensus`";
        return Err(source.error(tor.year.span(), "there is no built-in model of this `year`", cure));
    }
    if let Some(random) = &file.random {
        random.bandwidth.as_ref().map_or(Ok(()), |bucket| check_bandwidth(bucket, source))?;
        let to_unlimited = |link: &Between<Rate>| link.high == Rate::UNLIMITED && link.low != link.high;
        if [Some(&random.relay_link), random.end_link.as_ref()].into_iter().flatten().any(to_unlimited) {
            let cause = "a link's rate is a range up to unlimited";
            return Err(source.error(random.span(), cause, "give finite rates"));
        }
    }
    Ok(())
}

fn check_host(host: &HostFile, kind: &str, relays: &[&str], source: &Source) -> Result<(), InputError> {
    let name = &host.name;
    let fail = |cause: &str, cure: &str| {
        Err(source.error(name.span(), format!("{kind} `{}` {cause}", name.get_ref()), cure))
    };
    if let Some(at) = &host.at {
        if kind == "relay" {
            return fail("cannot share a machine", "only clients and servers have `at`");
        }
        if !relays.contains(&at.get_ref().as_str()) {
            let cause = format!("there is no relay `{}`", at.get_ref());
            return Err(source.error(at.span(), cause, suggest(at.get_ref(), relays)));
        }
    } else if host.link.is_none() && (host.up.is_none() || host.down.is_none()) {
        return fail("has no link", "give `link`, or `up` and `down`, such as \"10 Mbit/s\"");
    }
    match &host.bandwidth {
        Some(_) if kind != "relay" => fail("has a token bucket", "only relays have `bandwidth`"),
        Some(bucket) => check_bandwidth(bucket, source),
        None => Ok(()),
    }
}

fn check_bandwidth(bucket: &BandwidthFile, source: &Source) -> Result<(), InputError> {
    if *bucket.rate == Rate::UNLIMITED {
        return Err(source.error(bucket.rate.span(), "a token bucket needs a finite rate", "leave it out"));
    }
    Ok(())
}

fn check_users(file: &File, source: &Source) -> Result<(), InputError> {
    if file.user.is_empty() {
        return Err(InputError::new(&source.file, "has no [[user]]", "add one with a name and a traffic"));
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
            return Err(source.error(
                of_tor.span(),
                "`of-tor` counts users of a [tor] network",
                "use `count`",
            ));
        }
        let count = file.users(user);
        total = total.saturating_add(count);
        if count == 0 || total > MAX_ENTITIES {
            return Err(source.error(
                spanned.span(),
                "a scenario has 1 to 1,000,000 users",
                "change `count`",
            ));
        }
        let traffic = user.traffic.get_ref();
        if !file.traffic.contains_key(traffic) && traffic::built_in(traffic).is_none() {
            let known: Vec<&str> =
                traffic::BUILT_IN.iter().copied().chain(file.traffic.keys().map(String::as_str)).collect();
            let cause = format!("there is no traffic `{traffic}`");
            return Err(source.error(user.traffic.span(), cause, suggest(traffic, &known)));
        }
        check_route(file, user, spanned.span(), source)?;
        if user.stop.is_some_and(|stop| stop <= user.start.high) {
            return Err(source.error(spanned.span(), "the user stops before it starts", "change `stop`"));
        }
    }
    Ok(())
}

fn check_route(file: &File, user: &UserFile, span: Range<usize>, source: &Source) -> Result<(), InputError> {
    let known = |hosts: &[HostFile], name: &Name, kind: &str| {
        let names: Vec<&str> = hosts.iter().map(|host| host.name.get_ref().as_str()).collect();
        if names.contains(&name.get_ref().as_str()) {
            return Ok(());
        }
        let cause = format!("there is no {kind} `{}`", name.get_ref());
        let cure = if names.is_empty() {
            format!("no [[{kind}]] is given")
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
        return if file.relay.is_empty() {
            Ok(())
        } else if file.relay.len() < 3 {
            Err(source.error(span, "fewer than three relays, and a user without `path`", "add relays"))
        } else {
            known_ends(user, span, source)
        };
    };
    for relay in path {
        known(&file.relay, relay, "relay")?;
    }
    if path[0].get_ref() == path[1].get_ref()
        || path[1].get_ref() == path[2].get_ref()
        || path[0].get_ref() == path[2].get_ref()
    {
        return Err(source.error(
            path[0].span(),
            "the path uses a relay twice",
            "name three different relays",
        ));
    }
    Ok(())
}

/// A user who shares another's circuits sits at the same client, and the other builds circuits.
fn check_shared(file: &File, user: &UserFile, name: &Name, source: &Source) -> Result<(), InputError> {
    let text = |user: &UserFile| user.name.get_ref().clone();
    let before: Vec<&UserFile> =
        (file.user.iter().map(Placed::get_ref)).take_while(|other| text(other) != text(user)).collect();
    let names: Vec<&str> = before.iter().map(|user| user.name.get_ref().as_str()).collect();
    let Some(other) = before.iter().find(|other| other.name.get_ref() == name.get_ref()) else {
        let cause = format!("there is no user `{}` above", name.get_ref());
        return Err(source.error(name.span(), cause, suggest(name.get_ref(), &names)));
    };
    let wrong = if other.shares.is_some() {
        "who has no circuits to share"
    } else if user.path.is_some() {
        "and has a `path` of its own"
    } else if other.count != 1 {
        "who are many"
    } else if user.client.is_none()
        || user.server.is_none()
        || user.client.as_ref().map(Placed::get_ref) != other.client.as_ref().map(Placed::get_ref)
    {
        "but does not name the same `client`, or no `server`"
    } else {
        return Ok(());
    };
    let cause = format!("`{}` shares the circuits of `{}`, {wrong}", user.name.get_ref(), name.get_ref());
    Err(source.error(name.span(), cause, "share those of one user at the same client"))
}

/// In a network of named hosts a user without `path` draws relays, but its ends must be named.
fn known_ends(user: &UserFile, span: Range<usize>, source: &Source) -> Result<(), InputError> {
    if user.client.is_some() && user.server.is_some() {
        return Ok(());
    }
    Err(source.error(span, "a user without `path` needs a `client` and a `server`", "name both"))
}

fn check_traffic(kind: &TrafficFile, source: &Source) -> Result<(), InputError> {
    if kind.requests.iter().any(|request| request.size != Size::ENDLESS && request.size.0 > 1 << 50) {
        return Err(InputError::new(&source.file, "a response is above 1 PiB", "write \"endless\""));
    }
    let models = [&kind.stream_model, &kind.packet_model];
    match (kind.requests.is_empty(), models.iter().filter(|model| model.is_some()).count()) {
        (false, 0) | (true, 2) => Ok(()),
        _ => Err(InputError::new(
            &source.file,
            "a [traffic] table has neither requests nor both models, or too much of them",
            "give `requests`, or `stream-model` and `packet-model`",
        )),
    }
}

fn check_name<'a>(
    name: &'a Name,
    kind: &str,
    seen: &mut BTreeSet<&'a str>,
    source: &Source,
) -> Result<(), InputError> {
    let text = name.get_ref().as_str();
    if text.is_empty() || text.len() > 64 || !text.chars().all(file_name_character) || text.starts_with('.') {
        let cause =
            format!("`{}` is no name for a {kind}", text.chars().take(80).collect::<String>().escape_debug());
        return Err(source.error(name.span(), cause, "use up to 64 letters, digits, `-`, `_` and `.`"));
    }
    if !seen.insert(text) {
        return Err(source.error(name.span(), format!("the name `{text}` is taken"), "names are unique"));
    }
    Ok(())
}

/// Hosts and times of all faults.
fn check_faults(file: &File, source: &Source) -> Result<(), InputError> {
    let hosts: Vec<&str> = [&file.relay, &file.server, &file.client]
        .into_iter()
        .flatten()
        .map(|host| host.name.get_ref().as_str())
        .collect();
    for fault in &file.fault {
        for name in fault.between.iter().flatten().chain(&fault.host) {
            // Generated relays have names that only the network knows.
            if !hosts.is_empty() && !hosts.contains(&name.get_ref().as_str()) {
                let cause = format!("there is no host `{}`", name.get_ref());
                return Err(source.error(name.span(), cause, suggest(name.get_ref(), &hosts)));
            }
        }
        if let Some(missing) = fault.missing() {
            let cause = format!("this kind of fault needs `{missing}`");
            return Err(source.error(fault.span(), cause, "add it"));
        }
        if fault.until.is_some_and(|until| until <= fault.from) {
            return Err(source.error(fault.span(), "the fault ends before it begins", "change `until`"));
        }
    }
    Ok(())
}
