//! `tidegate relay`: runs a relay of an overlay on sockets.

mod bounds;
#[cfg(test)]
mod documented;
mod dos;
#[cfg(test)]
mod effects;
mod exit_policy;
mod left_out;
mod reload;
mod torrc;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;
use tidegate_control::keys::{Parameters, Wrong, read};
use tidegate_control::random::Seed;
use tidegate_control::units::{Rate, Span};
use tidegate_lab::input::{InputError, SourceFile};
use tidegate_lab::report::staged;
use tidegate_net::flashflow::check_permissions;
use tidegate_net::gate::Gate;
use tidegate_net::identity::{Identity, fill, hex, random, unhex};
use tidegate_net::live::directory::is_nickname;
use tidegate_net::live::relay::{
    Announce, Changes, Event, Measurement, Order, RelayConfig, Status, not_on_threads, run,
};
use tidegate_net::live::renewal::{Change, Keys};
use tidegate_net::live::{Addresses, Exit, Operator, Policy, Rule, keys};
use tidegate_net::{clock, os, private_file};
use tidegate_proto::combinations::{Neighbours, OnSockets, check_on_sockets};
use tidegate_proto::control::Place;
use tidegate_proto::crypto::cert::RouterKeys;
use tidegate_proto::crypto::{FamilyKey, SENDME_INCREMENT};
use tidegate_proto::flashflow::relay::Config as Permissions;
use tidegate_proto::links::{Config, Limits};
use tidegate_proto::system::SystemConfig;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use toml::{Spanned, Table};

use self::bounds::{LARGEST_FAMILY, LEAST_BANDWIDTH, LEAST_MEMORY, LEAST_WAIT, LONGEST_CONTACT};
use self::reload::Difference;
use self::torrc::Imported;
use crate::failure::Failure;
use crate::roles::{cure_of_key_file, cure_of_new_file, is_private, listen_all, run_on_this_thread};

/// Run a relay of an overlay; its exit policy makes it an exit (see docs/live.md)
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  tidegate relay --keygen relay.keys\n  tidegate relay --config relay.toml\n  tidegate relay --import /etc/tor/torrc --out relay.toml"
)]
pub struct RelayArgs {
    /// Read the relay's configuration from this TOML file
    #[arg(long, required_unless_present_any = ["keygen", "import"])]
    config: Option<PathBuf>,
    /// Check that configuration and exit
    #[arg(long, conflicts_with_all = ["keygen", "import"])]
    check: bool,
    /// Generate keys into this file, which must not exist, and exit
    #[arg(long, conflicts_with = "config")]
    keygen: Option<PathBuf>,
    /// Make a configuration from this torrc of tor, say what it leaves out, and exit
    #[arg(long, value_name = "TORRC", conflicts_with_all = ["config", "keygen"])]
    import: Option<PathBuf>,
    /// Write that configuration to this file, which must not exist [default: standard output]
    #[arg(long, requires = "import", conflicts_with_all = ["config", "keygen"])]
    out: Option<PathBuf>,
    /// Allow a `tor.authority` with a public address; the configuration must allow it too
    #[arg(long, conflicts_with_all = ["keygen", "import"])]
    allow_public_authority: bool,
}

/// Where a complete configuration is shown.
const EXAMPLE: &str = "docs/live.md shows a complete relay.toml";

/// A relay's configuration file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RelayFile {
    nickname: Spanned<String>,
    /// One address, or a list of an IPv4 and an IPv6 address.
    listen: Spanned<Value>,
    /// The public address, if it differs from `listen`.
    address: Option<Spanned<Value>>,
    /// Key file written by `tidegate relay --keygen`.
    keys: PathBuf,
    /// Number of threads, or `"all"` for one per core. By default 1; with `[tor]` one per core, unless KIST or a part that
    /// needs one thread is chosen.
    threads: Option<Spanned<Value>>,
    /// Rate limit of the token bucket; unlimited by default.
    bandwidth: Option<Spanned<Rate>>,
    /// Bandwidth that the directory gets; `bandwidth` by default. A lower one attracts fewer circuits (tor's
    /// MaxAdvertisedBandwidth). A higher one overstates the relay, for experiments.
    published_bandwidth: Option<Spanned<Rate>>,
    /// How to reach the operator, for the descriptor in a Tor network (tor's ContactInfo).
    contact: Option<Spanned<String>>,
    /// Fingerprints of the operator's other relays (tor's MyFamily).
    #[serde(default)]
    family: Vec<Spanned<String>>,
    /// Files of `tor --keygen-family` of families that the relay belongs to (tor's FamilyId).
    #[serde(default)]
    family_keys: Vec<Spanned<PathBuf>>,
    /// Exit rules; the first match decides. Without rules the relay is not an exit.
    #[serde(default)]
    exit_policy: Vec<Spanned<String>>,
    /// Let those rules accept private addresses too (tor's ExitPolicyRejectPrivate 0).
    exit_to_private_addresses: Option<Spanned<bool>>,
    /// Extend circuits to relays in private networks (tor's ExtendAllowPrivateAddresses).
    #[serde(default)]
    extend_to_private_addresses: bool,
    directory: Option<DirectoryFile>,
    tor: Option<TorFile>,
    system: Option<Spanned<Value>>,
    limits: Option<Spanned<Value>>,
    /// Parameters against denial of service that override the consensus', by the names of tor's options.
    #[serde(default)]
    dos: BTreeMap<String, Spanned<Value>>,
    /// Lifetimes of onion, signing and link keys.
    key_lifetimes: Option<Spanned<Value>>,
    /// FlashFlow measurements: consent, coordinators and limits.
    measurement: Option<Spanned<Value>>,
    /// Address of the status page and metrics; must be loopback.
    status: Option<Spanned<SocketAddr>>,
    /// List single circuits on the status page; for demonstrations.
    show_circuits: Option<Spanned<bool>>,
    /// How long a relay that ends waits for circuits in use (tor's ShutdownWaitLength); 30 s by default, as in tor.
    drain: Option<Spanned<Span>>,
}

/// The default of [`RelayFile::drain`].
const DRAIN: Span = Span::from_secs(30);

/// `[directory]`: the directory server of a private overlay.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DirectoryFile {
    address: SocketAddr,
    token: Option<Spanned<String>>,
}

/// `[tor]`: the authority of a private Tor network.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct TorFile {
    /// Address and directory port of the authority.
    authority: Spanned<SocketAddr>,
    /// Its further authorities.
    #[serde(default)]
    further_authorities: Vec<Spanned<SocketAddr>>,
    allow_public_authority: Option<Spanned<bool>>,
}

impl TorFile {
    /// All authorities, the first one first.
    fn authorities(&self) -> impl Iterator<Item = &Spanned<SocketAddr>> {
        [&self.authority].into_iter().chain(&self.further_authorities)
    }
}

/// Keys of a scenario's `[[system]]` that are not parts: a label, and what [`check_on_sockets`] refuses.
const NO_PARTS: [&str; 8] =
    ["name", "of-consensus", "old-clients", "other-clients", "packaging", "paths", "tcp", "tls"];

/// Reads the `[system]` table, which has the keys of a scenario's `[[system]]`.
pub fn links(
    system: Option<&Spanned<Value>>,
    at: OnSockets,
    source: &SourceFile,
) -> Result<Config, InputError> {
    let nonces = Seed::root(u64::from_le_bytes(random()));
    let Some(table) = system else { return Ok(Config { nonces, ..Config::default() }) };
    let fail = |wrong: Wrong| {
        let place = wrong.path.join(".");
        source.error(table.span(), format!("system.{place}: {}", wrong.cause), wrong.cure)
    };
    let mut parts = table.get_ref().clone();
    if let Some(keys) = parts.as_object_mut() {
        keys.retain(|key, _| !NO_PARTS.contains(&key.as_str()));
    }
    let system = SystemConfig::parse(&parts).map_err(fail)?;
    check_on_sockets(table.get_ref(), &system.table, at).map_err(fail)?;
    system.check(at.neighbours).map_err(fail)?;
    if let Some(name) = system.idle(&parts).first() {
        let cause = format!("system.{name}: has no effect, because no key of [system] chooses this part");
        return Err(source.error(table.span(), cause, "remove it, or choose the part"));
    }
    Ok(Config {
        transport: system.transport,
        scheduler: system.scheduler,
        kist: system.kist,
        control: system.control,
        windows: system.windows,
        output_buffer: system.output_buffer,
        queue_high: system.circuit_queue.high,
        queue_low: system.circuit_queue.low,
        switching: system.switching,
        conflux: system.conflux,
        nonces,
        ..Config::default()
    })
}

/// Reads the table `name` into the type `T`; a missing table gives the defaults.
fn table<T: Parameters>(
    name: &str,
    table: Option<&Spanned<Value>>,
    source: &SourceFile,
) -> Result<T, InputError> {
    let Some(table) = table else { return Ok(T::default()) };
    read(table.get_ref()).map_err(|wrong| {
        let place =
            [name].into_iter().chain(wrong.path.iter().map(String::as_str)).collect::<Vec<_>>().join(".");
        source.error(table.span(), format!("{place}: {}", wrong.cause), wrong.cure)
    })
}

/// Reads the `[limits]` table, capped by the number of file descriptors that the system allows.
fn limits(given: Option<&Spanned<Value>>, source: &SourceFile) -> Result<Limits, InputError> {
    let mut limits: Limits = table("limits", given, source)?;
    if let Some(given) = given.filter(|_| limits.memory < LEAST_MEMORY) {
        let cause = format!("limits.memory is {}: one connection may use {LEAST_MEMORY}", limits.memory);
        let cure =
            format!("set `memory` to {LEAST_MEMORY} or more; the default is {}", Limits::default().memory);
        return Err(source.error(given.span(), cause, cure));
    }
    if let Some(given) = given {
        for (key, span) in [("extending", limits.extending), ("without-circuits", limits.without_circuits)] {
            if span < LEAST_WAIT {
                let cause = format!("limits.{key} is {span}: other relays need time to answer");
                return Err(source.error(
                    given.span(),
                    cause,
                    format!("set `{key}` to {LEAST_WAIT} or more"),
                ));
            }
        }
    }
    let descriptors = u32::try_from(os::descriptors()).unwrap_or(u32::MAX);
    // The remaining descriptors are for streams, outgoing connections and files.
    limits.connections = limits.connections.min(descriptors / 2);
    limits.streams = limits.streams.min(descriptors / 4);
    Ok(limits)
}

/// Reads the `[measurement]` table: the permissions of `tidegate flashflow relay`, and the identity file.
fn measurement(
    given: Option<&Spanned<Value>>,
    folder: &Path,
    source: &SourceFile,
) -> Result<Option<Measurement>, InputError> {
    let Some(given) = given else { return Ok(None) };
    let fail = |cause: String, cure: &str| source.error(given.span(), cause, cure);
    let mut keys = given.get_ref().clone();
    let identity = keys.as_object_mut().and_then(|keys| keys.remove("identity"));
    let Some(identity) = identity.as_ref().and_then(Value::as_str) else {
        let cure = "create it with `tidegate flashflow keygen FILE` and set `identity = \"FILE\"`";
        return Err(fail("measurement.identity is missing".into(), cure));
    };
    let path = folder.join(identity);
    let identity = Identity::load(&path).map_err(|why| {
        fail(why.to_string(), &cure_of_key_file(&path, "create it with `tidegate flashflow keygen FILE`"))
    })?;
    let cure =
        "set `allowed`, `coordinators` and, if needed, `period`, `background-percent` and `max-duration`";
    let permissions: Permissions =
        serde_json::from_value(keys).map_err(|why| fail(format!("measurement: {why}"), cure))?;
    check_permissions(&permissions).map_err(|why| fail(why, cure))?;
    Ok(Some(Measurement { identity: Arc::new(identity), permissions }))
}

/// Reads one address, or an IPv4 and an IPv6 address.
fn addresses(given: &Spanned<Value>, source: &SourceFile) -> Result<Addresses, InputError> {
    let wrong = |cause: String| {
        let cure = "write \"192.0.2.1:9001\", or [\"192.0.2.1:9001\", \"[2001:db8::1]:9001\"]";
        source.error(given.span(), cause, cure)
    };
    let texts = match given.get_ref() {
        Value::Array(several) => several.iter().collect(),
        one => vec![one],
    };
    let read = |text: &Value| match text.as_str().map(|text| (text, text.parse::<SocketAddr>())) {
        Some((_, Ok(address))) => Ok(address),
        Some((text, Err(_))) => {
            Err(wrong(format!("`{}` is not an address with a port", text.escape_debug())))
        }
        None => Err(wrong("an address must be a string".into())),
    };
    let all = texts.into_iter().map(read).collect::<Result<Vec<_>, _>>()?;
    Addresses::new(&all).ok_or_else(|| wrong("expected one address, or one IPv4 and one IPv6 address".into()))
}

/// A relay's checked configuration.
struct Loaded {
    listen: Addresses,
    status: Option<(SocketAddr, bool)>,
    /// How long the relay waits for circuits in use when it ends.
    drain: Span,
    settings: RelayConfig,
}

/// Reads the join token of the directory.
fn token(directory: &DirectoryFile, source: &SourceFile) -> Result<Option<String>, InputError> {
    match &directory.token {
        Some(token) if !keys::is_token(token.get_ref()) => Err(source.error(
            token.span(),
            "`token` is not one word of at least 16 characters",
            "copy the token file of the directory",
        )),
        token => Ok(token.as_ref().map(|token| token.get_ref().clone())),
    }
}

/// Reads where the relay publishes itself.
fn announce(file: &RelayFile, allow_public: bool, source: &SourceFile) -> Result<Announce, InputError> {
    Ok(match (&file.directory, &file.tor) {
        (None, None) => Announce::None,
        (Some(directory), None) => Announce::Overlay(directory.address, token(directory, source)?),
        (None, Some(tor)) => {
            let allows = tor.allow_public_authority.as_ref().filter(|key| *key.get_ref());
            let public = tor.authorities().find(|at| !is_private(at.get_ref().ip()));
            match (public, allows) {
                (Some(public), allows) if !allow_public || allows.is_none() => {
                    let cause = format!("{} is not in a private network", public.get_ref());
                    let cure = "if you operate that network, set `allow-public-authority = true` here and pass \
                                --allow-public-authority";
                    return Err(source.error(public.span(), cause, cure));
                }
                (None, Some(key)) => {
                    let cause =
                        "`allow-public-authority` has no effect: all authorities are in private networks";
                    return Err(source.error(key.span(), cause, "remove the key"));
                }
                _ => {}
            }
            let mut authorities = Vec::new();
            for at in tor.authorities() {
                if authorities.contains(at.get_ref()) {
                    let cause = format!("the authority {} is there twice", at.get_ref());
                    return Err(source.error(at.span(), cause, "remove one of them"));
                }
                authorities.push(*at.get_ref());
            }
            Announce::Tor(authorities)
        }
        (Some(_), Some(tor)) => {
            let cause = "a relay has either a [directory] or a [tor] authority, not both";
            return Err(source.error(tor.authority.span(), cause, "remove one of them"));
        }
    })
}

/// Reads the operator's contact and family.
fn operator(file: &RelayFile, folder: &Path, source: &SourceFile) -> Result<Operator, InputError> {
    let contact = file.contact.as_ref().map(|contact| match contact.get_ref() {
        text if text.len() > LONGEST_CONTACT || text.contains(char::is_control) => Err(source.error(
            contact.span(),
            "`contact` is not one line of at most 1000 bytes",
            "write a name and an address in one line",
        )),
        text => Ok(text.trim().to_owned()),
    });
    let contact = contact.transpose()?.filter(|contact| !contact.is_empty());
    let member = |member: &Spanned<String>| {
        unhex(member.get_ref().trim_start_matches('$')).ok_or_else(|| {
            let cause = format!("family: `{}` is not a fingerprint", member.get_ref().escape_debug());
            source.error(member.span(), cause, "write 40 hexadecimal digits, as `--keygen` prints them")
        })
    };
    let family = file.family.iter().map(member).collect::<Result<Vec<_>, _>>()?;
    if let Some(first) = file.family.get(LARGEST_FAMILY) {
        let cause = format!("`family` names {} relays", family.len());
        return Err(source.error(first.span(), cause, "name at most 300, or use `family-keys`"));
    }
    let key = |key: &Spanned<PathBuf>| {
        let path = folder.join(key.get_ref());
        let fail = |why: String| {
            let cause = format!("family-keys: {} {why}", path.display());
            source.error(
                key.span(),
                cause,
                cure_of_key_file(&path, "create it with `tor --keygen-family NAME`"),
            )
        };
        let contents = private_file::read_bytes(&path).map_err(fail)?;
        FamilyKey::from_file(&contents).map(Arc::new).map_err(|why| fail(why.to_string()))
    };
    let family_keys = file.family_keys.iter().map(key).collect::<Result<Vec<_>, _>>()?;
    let first = file.contact.as_ref().map(Spanned::span);
    let first = first.or_else(|| file.family.first().map(Spanned::span));
    let first = first.or_else(|| file.family_keys.first().map(Spanned::span));
    match first.filter(|_| file.tor.is_none()) {
        Some(span) => {
            let cause = "`contact`, `family` and `family-keys` have no effect without [tor]: only the descriptor of a \
                         Tor network lists them";
            Err(source.error(span, cause, "remove them, or publish the relay in a Tor network by [tor]"))
        }
        None => Ok(Operator { contact, family, family_keys }),
    }
}

/// Reads the limit of the token bucket.
fn bandwidth(file: &RelayFile, source: &SourceFile) -> Result<Option<Rate>, InputError> {
    let Some(rate) = &file.bandwidth else { return Ok(None) };
    if *rate.get_ref() < LEAST_BANDWIDTH {
        let cause = format!("`bandwidth` is {}, below 75 KiB/s, the least of a relay of Tor", rate.get_ref());
        return Err(source.error(rate.span(), cause, "set 75 KiB/s or more, or remove it for no limit"));
    }
    Ok(Some(*rate.get_ref()))
}

/// Reads the bandwidth that the directory gets, bytes per second.
fn published(file: &RelayFile, source: &SourceFile) -> Result<Option<u64>, InputError> {
    if let Some(rate) =
        file.published_bandwidth.as_ref().filter(|_| file.directory.is_none() && file.tor.is_none())
    {
        let cause = "`published-bandwidth` has no effect without [directory] and [tor]: no directory gets it";
        return Err(source.error(rate.span(), cause, "remove it, or add [directory] or [tor]"));
    }
    let published = file.published_bandwidth.as_ref().map(|rate| match rate.get_ref() {
        Rate(bits) if *bits >= 8 && *bits < Rate::UNLIMITED.0 => Ok(bits / 8),
        _ => Err(source.error(
            rate.span(),
            "`published-bandwidth` is below 1 B/s or unlimited".to_owned(),
            "set a rate such as \"10 Mbit/s\", or remove it to publish `bandwidth`",
        )),
    });
    published.transpose()
}

/// Maximum number of threads. Every two of them are connected by a queue.
const MOST_THREADS: u64 = 64;

/// Reads the number of threads, which must fit the rest of the configuration.
fn threads(file: &RelayFile, config: &Config, source: &SourceFile) -> Result<NonZeroUsize, InputError> {
    let all = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let all = all.get().min(MOST_THREADS as usize);
    let refused = |number: usize| not_on_threads(number, config, file.measurement.is_some());
    let Some(given) = &file.threads else {
        // A relay with several threads does not announce the extensions of Tidegate's overlays. Under KIST several threads
        // make slow downloads slower (`reproduce live/kist-threads`).
        let fits = file.tor.is_some() && config.kist.is_none() && refused(all).is_none();
        let number = if fits { all } else { 1 };
        return Ok(NonZeroUsize::new(number).expect("it is at least 1"));
    };
    let fail = |cause: String, cure: &str| Err(source.error(given.span(), cause, cure));
    let number = match given.get_ref() {
        Value::String(text) if text == "all" => all,
        value => match value.as_u64() {
            Some(number @ 1..=MOST_THREADS) => number as usize,
            _ => {
                let cause = format!("`threads` is {value}");
                return fail(cause, "set a number from 1 to 64, or \"all\" for one thread per core");
            }
        },
    };
    if let Some(why) = refused(number) {
        return fail(format!("`threads` is {number}, but {why}"), "set `threads = 1`, or change that part");
    }
    Ok(NonZeroUsize::new(number).expect("it is at least 1"))
}

/// Reads the exit policy of a relay that has these addresses itself.
fn policy(file: &RelayFile, own: Vec<SocketAddr>, source: &SourceFile) -> Result<Policy, InputError> {
    let rules = file.exit_policy.iter().map(|rule| {
        rule.get_ref().parse::<Rule>().map_err(|cause| {
            source.error(rule.span(), cause, "write a rule such as `accept *:80` or `reject *:*`")
        })
    });
    let rules = rules.collect::<Result<Vec<Rule>, InputError>>()?;
    let to_private = match &file.exit_to_private_addresses {
        Some(key) if *key.get_ref() && rules.is_empty() => {
            let cause = "`exit-to-private-addresses` has no effect without an exit policy";
            return Err(source.error(key.span(), cause, "set `exit-policy`, or remove the key"));
        }
        Some(key) if *key.get_ref() && !rules.iter().any(Rule::accepts) => {
            let cause = "`exit-to-private-addresses` has no effect: the exit policy accepts nothing";
            return Err(source.error(key.span(), cause, "add an `accept` rule, or remove the key"));
        }
        key => key.as_ref().is_some_and(|key| *key.get_ref()),
    };
    Ok(Policy::new(rules, to_private, own))
}

/// Reads the address of the status page, and whether it shows circuits.
fn status(
    file: &RelayFile,
    listen: &Addresses,
    source: &SourceFile,
) -> Result<Option<(SocketAddr, bool)>, InputError> {
    let shows_circuits = file.show_circuits.as_ref().filter(|key| *key.get_ref());
    let Some(status) = &file.status else {
        let Some(key) = shows_circuits else { return Ok(None) };
        let cause = "`show-circuits` has no effect without a status page";
        return Err(source.error(key.span(), cause, "set `status` to an address, or remove the key"));
    };
    let address = *status.get_ref();
    if !address.ip().is_loopback() {
        let cause = format!("{address} is not on loopback");
        return Err(source.error(status.span(), cause, "use 127.0.0.1, and a tunnel for remote access"));
    }
    if address.port() != 0 && listen.all().contains(&address) {
        let cause = format!("the relay listens at {address} for other relays");
        return Err(source.error(status.span(), cause, "set `status` to another port"));
    }
    Ok(Some((address, shows_circuits.is_some())))
}

/// Reads and checks a configuration file.
fn load(path: &Path, allow_public: bool) -> Result<Loaded, InputError> {
    check_in_place(&SourceFile::read(path)?, path, allow_public)
}

/// Checks the text of the configuration file at `path`, with the files that it names.
fn check_in_place(source: &SourceFile, path: &Path, allow_public: bool) -> Result<Loaded, InputError> {
    let folder = path.parent().unwrap_or(Path::new(""));
    check(source, folder, allow_public, |path| keys::load(path, clock::unix()))
}

/// Checks a configuration. `folder` is that of its files; `keys` reads the file of keys.
fn check(
    source: &SourceFile,
    folder: &Path,
    allow_public: bool,
    keys: impl FnOnce(&Path) -> Result<RouterKeys, String>,
) -> Result<Loaded, InputError> {
    let file: RelayFile = source.parse_toml(EXAMPLE)?;
    let nickname = file.nickname.get_ref();
    if !is_nickname(nickname) {
        let cause = format!("`{}` is not a nickname", nickname.escape_debug());
        return Err(source.error(file.nickname.span(), cause, "use 1 to 19 letters and digits"));
    }
    let listen = addresses(&file.listen, source)?;
    let reached = file.address.as_ref().unwrap_or(&file.listen);
    let address = addresses(reached, source)?;
    let is_no_host = |address: &SocketAddr| match address.ip() {
        IpAddr::V4(ip) => ip.is_unspecified() || ip.is_multicast() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_unspecified() || ip.is_multicast(),
    };
    if let Some(wrong) = address.all().into_iter().find(is_no_host)
        && (file.directory.is_some() || file.tor.is_some())
    {
        let cause = format!("{wrong} is not an address that others can reach");
        return Err(source.error(reached.span(), cause, "set `address` to the public address of this relay"));
    }
    if file.tor.is_some() && address.first().is_ipv6() {
        let cause = "in a Tor network every relay needs an IPv4 address";
        return Err(source.error(reached.span(), cause, "list an IPv4 address before the IPv6 address"));
    }
    let policy = policy(&file, [listen.all(), address.all()].concat(), source)?;
    let status = status(&file, &listen, source)?;
    let announce = announce(&file, allow_public, source)?;
    let neighbours = if file.tor.is_some() { Neighbours::Stock } else { Neighbours::Alike };
    // Without the key, KIST has one thread.
    let one_thread = file.threads.as_ref().is_none_or(|threads| threads.get_ref() == 1);
    let at = OnSockets { neighbours, asks_kernel: one_thread && cfg!(target_os = "linux") };
    let mut config = links(file.system.as_ref(), at, source)?;
    config.limits = Some(limits(file.limits.as_ref(), source)?);
    if let Some(rate) = bandwidth(&file, source)? {
        config.bandwidth = rate.as_bytes_per_s();
    }
    let path = folder.join(&file.keys);
    let router = keys(&path).map_err(|why| {
        let cure = cure_of_key_file(&path, "create it with `tidegate relay --keygen FILE`");
        InputError::new(path.display().to_string(), why, cure)
    })?;
    let lifetimes = table("key-lifetimes", file.key_lifetimes.as_ref(), source)?;
    let keys = Keys { router, file: Some(path), lifetimes };
    let authorities = file.tor.iter().flat_map(TorFile::authorities);
    let directories = authorities.map(|at| *at.get_ref()).collect();
    let (nickname, exit) = (nickname.clone(), Exit { policy, directories });
    let extends = Gate::allowing_private(file.extend_to_private_addresses);
    let measurement = measurement(file.measurement.as_ref(), folder, source)?;
    let published = published(&file, source)?;
    let threads = threads(&file, &config, source)?;
    let defences = dos::read(&file.dos, file.tor.is_some(), source)?;
    let operator = operator(&file, folder, source)?;
    let settings = RelayConfig {
        nickname,
        address,
        keys,
        config,
        exit,
        extends,
        announce,
        status: None,
        measurement,
        published,
        defences,
        operator,
        threads,
    };
    let drain = file.drain.as_ref().map_or(DRAIN, |drain| *drain.get_ref());
    Ok(Loaded { listen, status, drain, settings })
}

/// Logs what is allowed and probably not meant.
fn warn(path: &Path, settings: &RelayConfig) {
    match &settings.announce {
        Announce::None => {
            let cure = "add [directory] of an overlay, or [tor] of a private Tor network";
            tracing::warn!(cure, "in no network: no client learns of this relay");
        }
        Announce::Overlay(_, Some(_)) => {
            if let Some(mode) = private_file::open_mode(path) {
                let (file, mode) = (path.display().to_string(), format!("{mode:o}"));
                tracing::warn!(file, mode, cure = "run chmod 600 on it", "others can read the token");
            }
        }
        Announce::Overlay(_, None) | Announce::Tor(_) => {}
    }
    let limit = settings.config.bandwidth;
    if let Some(published) = settings.published.filter(|published| *published as f64 >= limit) {
        let cure = "remove `published-bandwidth`, unless this is an experiment";
        tracing::warn!(
            published,
            limit,
            cure,
            "`published-bandwidth` is not below `bandwidth`: the relay states it as observed"
        );
    }
}

/// Reads the configuration again and logs each key that differs from `before`. Returns the changes, and how long the relay
/// waits when it ends.
fn reread(
    path: &Path,
    arguments: &RelayArgs,
    before: &mut Table,
    bound: &Addresses,
) -> Result<(Changes, Span), InputError> {
    let Loaded { settings, drain, .. } = load(path, arguments.allow_public_authority)?;
    let after: Table = SourceFile::read(path)?.parse_toml(EXAMPLE)?;
    let in_force = reload::in_force(before, after.clone());
    // Keys that need a restart keep their values, so the others must fit to those.
    let settings = if in_force == after {
        settings
    } else {
        let text = toml::to_string(&in_force).expect("a table of TOML has a text");
        let source = SourceFile { file: path.display().to_string(), text };
        check_in_place(&source, path, arguments.allow_public_authority)?.settings
    };
    warn(path, &settings);
    for Difference { key, before, after, fixed } in reload::differences(before, &after) {
        match fixed {
            None => tracing::info!(key, before, after, "changed"),
            Some(why) => tracing::warn!(key, before, after, why, cure = "restart the relay", "not changed"),
        }
    }
    let RelayConfig { address, exit, extends, config, published, announce, operator, defences, keys, .. } =
        settings;
    let place = Place { bandwidth: config.bandwidth, clock: config.clock };
    if before.get("bandwidth") != in_force.get("bandwidth") && config.control.controller(&place).is_some() {
        let why = "the controller (`control` of [system]) divides the rate of the relay's start";
        tracing::warn!(key = "bandwidth", why, cure = "restart the relay", "partly changed");
    }
    *before = in_force;
    let changes = Changes {
        address: address.with_ports(bound),
        exit,
        extends,
        bandwidth: config.bandwidth,
        published,
        limits: config.limits.unwrap_or_default(),
        announce,
        operator,
        defences,
        lifetimes: keys.lifetimes,
    };
    Ok((changes, drain))
}

/// Turns signals into orders: SIGHUP reloads, SIGTERM or Ctrl-C drains, a second one exits at once.
async fn handle_signals(
    arguments: &RelayArgs,
    path: &Path,
    (mut before, mut drain): (Table, Span),
    bound: Addresses,
    orders: mpsc::Sender<Order>,
    mut signals: os::Signals,
) -> Result<(), Failure> {
    let mut draining = false;
    loop {
        let order = if signals.next().await == os::Request::Reload {
            match reread(path, arguments, &mut before, &bound) {
                Ok((changes, wait)) => {
                    drain = wait;
                    Order::Reload(Box::new(changes))
                }
                Err(why) => {
                    tracing::warn!(cause = %why, "not reloaded");
                    continue;
                }
            }
        } else if std::mem::replace(&mut draining, true) {
            return Ok(());
        } else {
            Order::Drain(drain)
        };
        // The relay may have ended; then the order is not needed.
        let _ = orders.send(order).await;
    }
}

fn log_event(event: &Event) {
    match event {
        Event::Announced => tracing::info!("announced"),
        Event::Refused(why) => {
            let cure = "follow the directory's answer; the relay tries again";
            tracing::warn!(cause = why, cure, "refused");
        }
        Event::Withdrawn => tracing::info!("withdrawn"),
        Event::NotWithdrawn(why) => {
            tracing::warn!(cause = why, cure = "wait: directories remove silent relays", "not withdrawn");
        }
        Event::Reloaded => tracing::info!("reloaded"),
        Event::Draining => tracing::info!("draining"),
        Event::Defends(parameters) => tracing::info!(
            circuits = parameters.circuits.is_some(),
            connections = parameters.connections.is_some(),
            streams = parameters.streams.is_some(),
            introductions = parameters.introductions.is_some(),
            refuses_single_hop_rendezvous = parameters.refuses_single_hop_rendezvous,
            "defends against denial of service"
        ),
        Event::Unread(why) => {
            let cure = "check `authority` of [tor]; the relay tries again";
            tracing::warn!(cause = why, cure, "consensus not read; the last parameters stay in force");
        }
        Event::OtherIncrement(cells) => {
            let cause = format!(
                "cc_sendme_inc is {cells}, and this relay acknowledges every {SENDME_INCREMENT} cells"
            );
            let cure = "let the authorities vote for the default";
            tracing::warn!(cause, cure, "clients cannot use congestion control with this relay");
        }
        Event::History(why) => {
            let cure = "make the folder of the key file writable, and free space there";
            tracing::warn!(cause = why, cure, "history of carried bytes not stored");
        }
        Event::Tested(circuits) => tracing::info!(circuits, "tested its bandwidth"),
        Event::NotTested(why) => {
            let cure = "let others reach `address`; the relay tries again, and carries users meanwhile";
            tracing::warn!(cause = why, cure, "bandwidth not tested");
        }
        Event::Keys(Change::Onion) => tracing::info!(key = "onion", "renewed"),
        Event::Keys(Change::Forgotten) => tracing::info!(key = "onion", "forgotten"),
        Event::Keys(Change::Signing) => tracing::info!(key = "signing", "renewed"),
        Event::Keys(Change::Link) => tracing::info!(key = "link", "renewed"),
        Event::Keys(Change::Failed(why)) => {
            let cure = "make the key file and its folder writable; the relay tries again";
            tracing::warn!(cause = why, cure, "keys not renewed");
        }
    }
}

/// Checks a configuration without a file of keys.
pub fn check_without_keys(source: &SourceFile) -> Result<(), InputError> {
    check(source, Path::new(""), false, |_| Ok(RouterKeys::generate(&mut fill))).map(drop)
}

/// Makes a configuration from a torrc.
fn import(path: &Path, out: Option<&Path>) -> Result<(), InputError> {
    let Imported { text, taken, off, left } = torrc::import(path)?;
    let file = out.map_or_else(|| "the imported configuration".to_owned(), |out| out.display().to_string());
    // Check the configuration now, so that an error appears here and not at the relay's start.
    let source = SourceFile { file, text };
    check_without_keys(&source)?;
    let SourceFile { file, text } = source;
    match out {
        None => print!("{text}"),
        Some(out) => staged::create(out, text.as_bytes()).map_err(|cause| {
            InputError::new(&file, format!("cannot be written: {cause}"), cure_of_new_file(out))
        })?,
    }
    let names = |names: BTreeSet<String>| names.into_iter().collect::<Vec<_>>().join(", ");
    eprintln!("imported: {}", names(taken));
    if !off.is_empty() {
        eprintln!("off in every relay: {}", names(off));
    }
    left.iter().for_each(|line| eprintln!("left out: {line}"));
    if out.is_some() {
        eprintln!("next: tidegate relay --keygen relay.keys, in the folder of {file}");
    }
    Ok(())
}

/// Runs the subcommand.
pub fn main(arguments: &RelayArgs) -> Result<ExitCode, Failure> {
    if let Some(path) = &arguments.keygen {
        let keys = keys::create(path).map_err(|why| {
            Failure::Input(InputError::new(path.display().to_string(), why, cure_of_new_file(path)))
        })?;
        println!("fingerprint = \"{}\"", hex(&keys.fingerprint()));
        println!("identity = \"{}\"", hex(&keys.ed25519()));
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(path) = &arguments.import {
        import(path, arguments.out.as_deref())?;
        return Ok(ExitCode::SUCCESS);
    }
    let path = arguments.config.as_deref().expect("clap requires --config without --keygen and --import");
    let Loaded { listen, status, drain, mut settings } = load(path, arguments.allow_public_authority)?;
    if arguments.check {
        println!("{}: fine", path.display());
        return Ok(ExitCode::SUCCESS);
    }
    let running: Table = SourceFile::read(path)?.parse_toml(EXAMPLE)?;
    run_on_this_thread(async {
        // SIGHUP must not end a relay that has said that it listens.
        let signals = os::Signals::new().map_err(other)?;
        let listeners = listen_all(&listen.all())?;
        let bound: Vec<_> = listeners.iter().filter_map(|listener| listener.local_addr().ok()).collect();
        let bound = Addresses::new(&bound).expect("a relay listens on one address, or one per family");
        settings.address = settings.address.with_ports(&bound);
        if let Some((address, circuits)) = status {
            let listener = TcpListener::bind(address).await;
            let listener = listener
                .map_err(|cause| other(format!("cannot serve the status page on {address}: {cause}")))?;
            let address = listener.local_addr().map_err(other)?;
            tracing::info!(%address, "status");
            settings.status = Some(Status { listener, circuits });
        }
        warn(path, &settings);
        let last = RefCell::new(None);
        let hear = |event: Event| {
            // Announcements repeat with every directory period; log only changes.
            let again = last.borrow().as_ref() == Some(&event);
            if !again || !matches!(event, Event::Announced | Event::Refused(_) | Event::Unread(_)) {
                log_event(&event);
            }
            last.replace(Some(event));
        };
        let (orders, taken) = mpsc::channel(1);
        tokio::select! {
            result = run(settings, listeners, taken, &hear) => result.map_err(other),
            result = handle_signals(arguments, path, (running, drain), bound, orders, signals) => result,
        }
    })?;
    Ok(ExitCode::SUCCESS)
}

fn other(cause: impl std::fmt::Display) -> Failure {
    Failure::other(cause)
}
