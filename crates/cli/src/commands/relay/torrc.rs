//! `tidegate relay --import`: a relay's configuration from a torrc of tor.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use tidegate_control::units::{Bytes, Rate, Span};
use tidegate_data::document::DataError;
use tidegate_data::torrc::{self, Change, Setting, seconds, size};
use tidegate_net::identity::unhex;
use tidegate_net::live::directory::is_nickname;
use tidegate_net::live::family_id;
use tidegate_net::private_file;
use tidegate_proto::crypto::FamilyKey;
use tidegate_proto::defence::OPTIONS;

use super::bounds::{LARGEST_FAMILY, LEAST_BANDWIDTH, LEAST_MEMORY, LONGEST_CONTACT};
use super::{dos, exit_policy, left_out};
use crate::roles::is_private;

/// The result of an import.
pub(super) struct Imported {
    /// The relay's configuration.
    pub text: String,
    /// Names of the options that are in it.
    pub taken: BTreeSet<String>,
    /// Names of options that turn off what a relay of Tidegate never does.
    pub off: BTreeSet<String>,
    /// What is left out, with the reason.
    pub left: Vec<String>,
}

/// Longest lifetime of keys that a relay accepts, seconds.
const LONGEST_LIFETIME: u64 = 90 * 24 * 3600;
/// Largest number of threads of a relay.
const MOST_THREADS: u64 = 64;

/// Converts a torrc.
///
/// # Errors
/// If it cannot be read, or tor would not be a public relay with it, or a value is malformed.
pub(super) fn import(path: &Path) -> Result<Imported, DataError> {
    let settings = torrc::open(path)?;
    let mut writer = Writer::new(Options::new(&settings));
    let port = writer.options.last("ORPort");
    let Some(port) = port.filter(|port| port.value != "0") else {
        let (file, cause) =
            (path.display().to_string(), "sets no `ORPort`, so tor is not a relay with it".into());
        let cure = "name the torrc of a relay".into();
        return Err(DataError { file, line: None, column: None, cause, cure });
    };
    if let Some(bridge) = writer.options.last("BridgeRelay").filter(|bridge| bridge.value != "0") {
        let cause = "`BridgeRelay` is set: a bridge must not become a relay that everybody can list";
        return Err(bridge.error(cause, "name the torrc of a relay"));
    }
    writer.identity(path)?;
    writer.addresses(port)?;
    writer.network();
    writer.rates()?;
    writer.exit()?;
    writer.status()?;
    writer.operator();
    writer.limits()?;
    writer.defences();
    Ok(writer.finish(&settings))
}

/// Settings by option, after `/Option` has cleared some.
struct Options<'a>(Vec<&'a Setting>);

impl<'a> Options<'a> {
    fn new(settings: &'a [Setting]) -> Options<'a> {
        let mut kept: Vec<&Setting> = Vec::new();
        for setting in settings {
            match setting.change {
                Change::Clear => kept.retain(|earlier| !earlier.name.eq_ignore_ascii_case(&setting.name)),
                Change::Set | Change::Add => kept.push(setting),
            }
        }
        Options(kept)
    }

    /// All settings of an option, in order.
    fn all(&self, name: &str) -> Vec<&'a Setting> {
        self.0.iter().copied().filter(|setting| setting.name.eq_ignore_ascii_case(name)).collect()
    }

    /// The setting of an option with one value: the last one counts.
    fn last(&self, name: &str) -> Option<&'a Setting> {
        self.all(name).pop()
    }

    fn is_on(&self, name: &str) -> Option<bool> {
        self.last(name).map(|setting| setting.value != "0" && setting.value != "auto")
    }

    /// The size of an option.
    fn size(&self, name: &str) -> Result<Option<u64>, DataError> {
        let Some(setting) = self.last(name) else { return Ok(None) };
        let bytes = size(&setting.value).ok_or_else(|| {
            let cause = format!("`{}` is not a size", setting.value.escape_debug());
            setting.error(cause, "write a number and a unit of tor, such as `10 MBytes`")
        });
        bytes.map(Some)
    }
}

/// A text as a TOML string.
fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

/// A list as TOML, or its only element.
fn list(elements: &[String]) -> String {
    match elements {
        [one] => quoted(one),
        several => format!("[{}]", several.iter().map(|one| quoted(one)).collect::<Vec<_>>().join(", ")),
    }
}

struct Writer<'a> {
    options: Options<'a>,
    text: String,
    /// Tables of the file, which follow all keys outside of tables.
    tables: String,
    taken: BTreeSet<&'static str>,
    left: Vec<String>,
    /// Files and lines of settings that are left out as a whole.
    unused: BTreeSet<(String, usize)>,
    /// Whether others can reach the relay at the addresses of the file.
    is_reachable: bool,
}

impl<'a> Writer<'a> {
    fn new(options: Options<'a>) -> Writer<'a> {
        let (text, tables, taken, left, unused) = Default::default();
        Writer { options, text, tables, taken, left, unused, is_reachable: false }
    }

    fn key(&mut self, key: &str, value: &str) {
        self.text.push_str(&format!("{key} = {value}\n"));
    }

    /// Notes that a setting is left out.
    fn leave(&mut self, setting: &Setting, why: &str) {
        self.unused.insert((setting.file.clone(), setting.line));
        self.leave_part(setting, why);
    }

    /// Notes that a part of a setting is left out.
    fn leave_part(&mut self, setting: &Setting, why: &str) {
        let Setting { name, value, file, line, .. } = setting;
        let value = if value.is_empty() { String::new() } else { format!(" {}", value.escape_debug()) };
        self.left.push(format!("{file}:{line}: {name}{value}: {why}"));
    }

    fn take(&mut self, options: &[&'static str]) {
        self.taken.extend(options);
    }

    fn identity(&mut self, path: &Path) -> Result<(), DataError> {
        self.text = format!("# Made from {} by `tidegate relay --import`.\n", path.display());
        let nickname = self.options.last("Nickname");
        if let Some(nickname) = nickname.filter(|nickname| !is_nickname(&nickname.value)) {
            let cause = format!("`{}` is not a nickname", nickname.value.escape_debug());
            return Err(nickname.error(cause, "use 1 to 19 letters and digits"));
        }
        self.key("nickname", &quoted(nickname.map_or("Unnamed", |nickname| &nickname.value)));
        self.key("keys", "\"relay.keys\"");
        self.take(&["Nickname"]);
        Ok(())
    }

    /// A key that only acts in a Tor network. Without one it becomes a comment, since a relay of a [directory] refuses it.
    fn key_of_tor(&mut self, key: &str, value: &str, settings: &[&Setting]) {
        self.key_of_network(key, value, settings, ("[tor]", ": a [directory] does not list it"));
    }

    /// A key that acts only in such a `network`. Without `[tor]` it is a comment, which says so and `why`.
    fn key_of_network(
        &mut self,
        key: &str,
        value: &str,
        settings: &[&Setting],
        (network, why): (&str, &str),
    ) {
        if self.tables.contains("\n[tor]\n") {
            return self.key(key, value);
        }
        self.text.push_str(&format!("# {key} = {value}   # only with {network}{why}\n"));
        for setting in settings {
            self.leave(setting, &format!("`{key}` acts only with {network}, so it is a comment in the file"));
        }
    }

    /// `contact`, `family` and `family-keys`.
    fn operator(&mut self) {
        self.take(&["ContactInfo", "MyFamily", "FamilyId", "FamilyKeyDirectory"]);
        if let Some(contact) = self.options.last("ContactInfo").filter(|contact| !contact.value.is_empty()) {
            match contact.value.len() > LONGEST_CONTACT || contact.value.contains(char::is_control) {
                true => self.leave(contact, "it is not one line of at most 1000 bytes"),
                false => self.key_of_tor("contact", &quoted(&contact.value), &[contact]),
            }
        }
        let mut family = Vec::new();
        for setting in self.options.all("MyFamily") {
            for member in setting.value.split(',').map(|member| member.trim().trim_start_matches('$')) {
                // A nickname may follow a fingerprint.
                let member = member.split(['~', '=']).next().unwrap_or_default();
                match unhex::<20>(member) {
                    Some(_) => family.push(quoted(&member.to_uppercase())),
                    None if member.is_empty() => {}
                    None => self.leave_part(setting, "a member that is not a fingerprint"),
                }
            }
        }
        let settings = self.options.all("MyFamily");
        if family.len() > LARGEST_FAMILY {
            let why = format!("the family has more than {LARGEST_FAMILY} relays; use FamilyId");
            settings.iter().for_each(|setting| self.leave(setting, &why));
        } else if !family.is_empty() {
            self.key_of_tor("family", &format!("[{}]", family.join(", ")), &settings);
        }
        self.family_keys();
    }

    /// The files with the keys of `FamilyId`.
    fn family_keys(&mut self) {
        let wanted = self.options.all("FamilyId");
        let Some(first) = wanted.first() else { return };
        let folder = self.options.last("FamilyKeyDirectory").or_else(|| self.options.last("KeyDirectory"));
        let folder = folder.map(|setting| PathBuf::from(&setting.value)).or_else(|| {
            self.options.last("DataDirectory").map(|setting| Path::new(&setting.value).join("keys"))
        });
        let Some(folder) = folder else {
            let why =
                "no directory of keys is named; write the files of `tor --keygen-family` as `family-keys`";
            return self.leave(first, why);
        };
        let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten().map(|entry| entry.path());
        let mut files: Vec<(PathBuf, String)> = Vec::new();
        for path in entries.filter(|path| path.extension().is_some_and(|end| end == "secret_family_key")) {
            let key =
                private_file::read_bytes(&path).ok().and_then(|bytes| FamilyKey::from_file(&bytes).ok());
            files.extend(key.map(|key| (path, family_id(&key))));
        }
        files.sort();
        let (mut keys, mut used) = (Vec::new(), Vec::new());
        for setting in wanted {
            let found = files.iter().filter(|(_, public)| setting.value == "*" || setting.value == *public);
            let before = keys.len();
            keys.extend(found.map(|(path, _)| quoted(&path.display().to_string())));
            if keys.len() == before {
                self.leave(setting, &format!("{} has no readable key of this family", folder.display()));
            } else {
                used.push(setting);
            }
        }
        if !keys.is_empty() {
            self.key_of_tor("family-keys", &format!("[{}]", keys.join(", ")), &used);
        }
    }

    /// `listen` and `address`: one of IPv4 and one of IPv6.
    fn addresses(&mut self, last: &Setting) -> Result<(), DataError> {
        self.take(&["ORPort", "Address"]);
        let mut ports = Ports::default();
        for setting in self.options.all("Address") {
            match setting.value.trim_matches(['[', ']']).parse::<IpAddr>() {
                Ok(address) => ports.public[usize::from(address.is_ipv6())] = Some(address),
                Err(_) => self.leave(setting, "a name is not looked up; write the IP address as `address`"),
            }
        }
        let all = self.options.all("ORPort");
        // Addresses go before bare ports, which stand for every address of a family.
        let (named, bare): (Vec<_>, Vec<_>) = all.into_iter().partition(|port| port.value.contains(':'));
        for setting in named.into_iter().chain(bare) {
            if let Some(why) = ports.add(setting)? {
                self.leave(setting, why);
            }
        }
        let (listen, address) = ports.addresses();
        if listen.is_empty() {
            return Err(last.error("no `ORPort` listens", "remove `NoListen` from one of them"));
        }
        self.key("listen", &list(&listen));
        self.is_reachable = address.is_some();
        match address {
            Some(address) => self.key("address", &list(&address)),
            None => {
                self.text.push_str("# address = \"PUBLIC ADDRESS:PORT\"\n");
                let why = "tor looks for its public address; write it as `address` before the relay joins a network";
                self.left.push(format!("Address: {why}"));
            }
        }
        Ok(())
    }

    fn rates(&mut self) -> Result<(), DataError> {
        self.take(&["BandwidthRate", "RelayBandwidthRate", "MaxAdvertisedBandwidth"]);
        let all = self.options.size("BandwidthRate")?;
        // Zero means that no limit of its own applies to relayed traffic.
        let relayed = self.options.size("RelayBandwidthRate")?.filter(|rate| *rate > 0);
        for (name, rate) in [("BandwidthRate", all), ("RelayBandwidthRate", relayed)] {
            if let Some(rate) = rate.filter(|rate| Rate::from_bytes_per_s(*rate) < LEAST_BANDWIDTH) {
                let cause =
                    format!("`{name}` is {rate} bytes per second, below 75 KBytes, tor's least of a relay");
                let setting = self.options.last(name).expect("it was read");
                return Err(setting.error(cause, "set 75 KBytes or more, or remove the line"));
            }
        }
        let rate = all.into_iter().chain(relayed).min();
        let advertised = self.options.size("MaxAdvertisedBandwidth")?;
        if let Some(rate) = rate {
            self.key("bandwidth", &quoted(&Rate::from_bytes_per_s(rate).to_string()));
        }
        // A value above the limit does nothing in tor, and would overstate the relay here.
        if let Some(advertised) = advertised {
            let setting = self.options.last("MaxAdvertisedBandwidth").expect("it was read");
            if rate.is_none_or(|rate| advertised < rate) {
                let value = quoted(&Rate::from_bytes_per_s(advertised).to_string());
                self.key_of_network("published-bandwidth", &value, &[setting], ("[directory] or [tor]", ""));
            } else {
                self.leave(setting, "it is not below the rate, so it has no effect");
            }
        }
        Ok(())
    }

    fn exit(&mut self) -> Result<(), DataError> {
        self.take(&["ExitRelay", "ExitPolicy", "ReducedExitPolicy", "IPv6Exit", "ExitPolicyRejectPrivate"]);
        self.take(&["ExtendAllowPrivateAddresses", "TestingTorNetwork"]);
        let is_test = self.options.is_on("TestingTorNetwork") == Some(true);
        let exits_to_private = !self.options.is_on("ExitPolicyRejectPrivate").unwrap_or(!is_test);
        let (is_reduced, exits_to_ipv6) = (
            self.options.is_on("ReducedExitPolicy") == Some(true),
            self.options.is_on("IPv6Exit") == Some(true),
        );
        let policy = self.options.all("ExitPolicy");
        let stated = self.options.last("ExitRelay").filter(|setting| setting.value != "auto");
        let is_exit = match stated {
            Some(setting) => setting.value != "0",
            None => !policy.is_empty() || is_reduced || exits_to_ipv6,
        };
        if is_exit {
            let options = exit_policy::Options { policy, is_reduced, exits_to_ipv6, exits_to_private };
            let (rules, ignored) = exit_policy::rules(&options)?;
            ignored.into_iter().for_each(|(setting, why)| self.leave(setting, why));
            let rules: String = rules.iter().map(|rule| format!("    {},\n", quoted(rule))).collect();
            if !rules.is_empty() {
                self.key("exit-policy", &format!("[\n{rules}]"));
                self.key("exit-to-private-addresses", &exits_to_private.to_string());
            }
        } else {
            for setting in policy {
                self.leave(setting, "the relay is not an exit, since `ExitRelay` is 0");
            }
        }
        if self.options.is_on("ExtendAllowPrivateAddresses").unwrap_or(is_test) {
            self.key("extend-to-private-addresses", "true");
        }
        Ok(())
    }

    fn status(&mut self) -> Result<(), DataError> {
        self.take(&["MetricsPort", "NumCPUs", "ShutdownWaitLength"]);
        if let Some(setting) = self.options.last("ShutdownWaitLength") {
            match seconds(&setting.value) {
                Some(wait) => self.key("drain", &quoted(&Span::from_secs(wait).to_string())),
                None => self.leave(setting, "it is not a time"),
            }
        }
        let mut found = false;
        for setting in self.options.all("MetricsPort").into_iter().filter(|setting| setting.value != "0") {
            let place = setting.value.split_whitespace().next().unwrap_or_default();
            let port = place.parse().map(|port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
            let Ok(address) = port.or_else(|_| place.parse::<SocketAddr>()) else {
                return Err(no_port(setting, place, "write the port of tor's metrics, or remove the line"));
            };
            if !address.ip().is_loopback() {
                self.leave(setting, "the status page is on a loopback address; use a tunnel from elsewhere");
            } else if found {
                self.leave(setting, "a relay has one status page");
            } else {
                found = true;
                self.key("status", &quoted(&address.to_string()));
            }
        }
        if let Some(setting) = self.options.last("NumCPUs") {
            match setting.value.parse::<u64>() {
                Ok(0) => self.key("threads", "\"all\""),
                Ok(number) => {
                    if number > MOST_THREADS {
                        let why = format!("a relay has at most {MOST_THREADS} threads; it gets these");
                        self.leave_part(setting, &why);
                    }
                    self.key("threads", &number.min(MOST_THREADS).to_string());
                }
                Err(_) => self.leave(setting, "it is not a number"),
            }
        }
        Ok(())
    }

    /// `[tor]`: the authorities of a private network.
    fn network(&mut self) {
        self.take(&["DirAuthority", "PublishServerDescriptor"]);
        let publishes = self
            .options
            .last("PublishServerDescriptor")
            .is_none_or(|setting| setting.value == "1" || setting.value == "v3");
        let mut authorities = Vec::new();
        for setting in self.options.all("DirAuthority") {
            let place = setting.value.split_whitespace().find_map(|word| word.parse::<SocketAddr>().ok());
            // The first word is a nickname.
            let flags = || setting.value.split_whitespace().skip(1).map(str::to_ascii_lowercase);
            match place {
                // Relays publish at authorities that vote.
                _ if flags().any(|flag| flag == "bridge") => self.leave(setting, "it is an authority of bridges"),
                _ if !flags().any(|flag| flag.starts_with("v3ident=")) => self.leave(setting, "it has no `v3ident`, so it does not vote"),
                _ if !publishes => self.leave(setting, "`PublishServerDescriptor` forbids to publish the relay"),
                None => self.leave(setting, "it has no address with a directory port"),
                Some(_) if !self.is_reachable => self.leave(setting, "write `address`, then add it to [tor]"),
                Some(place) if !is_private(place.ip()) => self.leave(
                    setting,
                    "its address is public; [tor] needs `allow-public-authority = true`, and the command line \
                     --allow-public-authority",
                ),
                Some(place) => authorities.push(place.to_string()),
            }
        }
        if let Some((first, further)) = authorities.split_first() {
            self.tables.push_str(&format!("\n[tor]\nauthority = {}\n", quoted(first)));
            if !further.is_empty() {
                let further: Vec<String> = further.iter().map(|place| quoted(place)).collect();
                self.tables.push_str(&format!("further-authorities = [{}]\n", further.join(", ")));
            }
        } else if publishes {
            let why = "a relay joins only a network that its configuration names: add [tor] or [directory]";
            let network = if self.options.all("DirAuthority").is_empty() { "the public" } else { "a" };
            self.left.push(format!("{network} Tor network: {why}"));
        }
    }

    fn limits(&mut self) -> Result<(), DataError> {
        self.take(&["MaxMemInQueues", "SigningKeyLifetime"]);
        let memory = self.options.size("MaxMemInQueues")?.filter(|memory| *memory > 0).map(Bytes);
        match (memory, self.options.last("MaxMemInQueues")) {
            (Some(memory), Some(setting)) if memory < LEAST_MEMORY => {
                self.leave(setting, &format!("`memory` of [limits] is at least {LEAST_MEMORY}"));
            }
            (Some(memory), _) => {
                let memory = quoted(&memory.to_string());
                self.tables.push_str(&format!("\n[limits]\nmemory = {memory}\n"));
            }
            (None, _) => {}
        }
        if let Some(setting) = self.options.last("SigningKeyLifetime") {
            // The default of `link`, which must not be longer, is 2 days.
            match seconds(&setting.value)
                .filter(|lifetime| (2 * 24 * 3600..=LONGEST_LIFETIME).contains(lifetime))
            {
                Some(lifetime) => {
                    let lifetime = quoted(&Span::from_secs(lifetime).to_string());
                    self.tables.push_str(&format!("\n[key-lifetimes]\nsigning = {lifetime}\n"));
                }
                None => self.leave(setting, "`signing` of [key-lifetimes] is 2 to 90 days here"),
            }
        }
        Ok(())
    }

    /// `[dos]`: options with tor's names.
    fn defences(&mut self) {
        let mut table = BTreeMap::new();
        for (name, allowed) in &OPTIONS {
            self.taken.insert(*name);
            let Some(setting) = self.options.last(name).filter(|setting| setting.value != "auto") else {
                continue;
            };
            let value = match name.ends_with("Period") {
                true => seconds(&setting.value).and_then(|seconds| i32::try_from(seconds).ok()),
                false => setting.value.parse::<i32>().ok(),
            };
            match value {
                Some(value) if allowed.contains(&value) => drop(table.insert((*name).to_owned(), value)),
                Some(0) => self.leave(setting, "0 means the value of the consensus, as a missing key does"),
                _ => {
                    let (low, high) = (allowed.start(), allowed.end());
                    self.leave(setting, &format!("its range is {low} to {high}"));
                }
            }
        }
        let has_consensus = self.tables.contains("\n[tor]\n");
        let mut lines = String::new();
        for (name, value) in &table {
            match dos::without_effect(name, &table, has_consensus) {
                None => lines.push_str(&format!("{name} = {value}\n")),
                Some(enabled) => {
                    let setting = self.options.last(name).expect("it was read");
                    self.leave(setting, &format!("it has no effect without {enabled} = 1"));
                }
            }
        }
        if !lines.is_empty() {
            self.tables.push_str(&format!("\n[dos]\n{lines}"));
        }
    }

    /// Names the settings that no key stands for.
    fn finish(mut self, settings: &[Setting]) -> Imported {
        let names = std::mem::take(&mut self.taken);
        let is_taken = |name: &str| names.iter().any(|taken| taken.eq_ignore_ascii_case(name));
        let (mut taken, mut off) = (BTreeSet::new(), BTreeSet::new());
        for setting in settings {
            let Setting { name, value, change, .. } = setting;
            if is_taken(name) {
                // Those that are left out are named already.
                if !self.unused.contains(&(setting.file.clone(), setting.line)) {
                    taken.insert(name.clone());
                }
            } else if *change == Change::Clear || left_out::loses_nothing(name, value) {
                off.insert(name.clone());
            } else {
                let why = left_out::why(name).unwrap_or("tor 0.4.9 has no such option");
                self.leave(setting, why);
            }
        }
        Imported { text: self.text + &self.tables, taken, off, left: self.left }
    }
}

fn no_port(setting: &Setting, place: &str, cure: &str) -> DataError {
    setting.error(format!("`{}` is not a port or an address with a port", place.escape_debug()), cure)
}

/// The ports and addresses of `ORPort` and `Address`, for IPv4 and for IPv6.
#[derive(Default)]
struct Ports {
    listen: [Option<SocketAddr>; 2],
    /// Announced ports, with the address if `ORPort` names one.
    announced: [Option<(Option<IpAddr>, u16)>; 2],
    public: [Option<IpAddr>; 2],
}

impl Ports {
    /// Adds a setting of `ORPort`; why it is left out, if it is.
    fn add(&mut self, setting: &Setting) -> Result<Option<&'static str>, DataError> {
        let mut words = setting.value.split_whitespace();
        let place = words.next().unwrap_or_default();
        let flags: Vec<String> = words.map(str::to_lowercase).collect();
        let has = |flag: &str| flags.iter().any(|word| word == flag);
        let (address, port) = match place.rsplit_once(':') {
            Some((address, port)) => (address.trim_matches(['[', ']']).parse::<IpAddr>().map(Some), port),
            None => (Ok(None), place),
        };
        // `listen` with port 0 lets the system choose, as `auto` does.
        let port = if port == "auto" { Ok(0) } else { port.parse::<u16>() };
        let (Ok(address), Ok(port)) = (address, port) else {
            return Err(no_port(setting, place, "write `9001`, `192.0.2.1:9001` or `[2001:db8::1]:9001`"));
        };
        let families = match address {
            Some(address) => vec![address.is_ipv6()],
            None if has("ipv6only") => vec![true],
            // A bare port also means IPv6 if the relay has an IPv6 address without a port of its own.
            None if !has("ipv4only") && self.public[1].is_some() && self.is_free(1) => vec![false, true],
            None => vec![false],
        };
        for is_ipv6 in families {
            let family = usize::from(is_ipv6);
            let any: IpAddr =
                if is_ipv6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
            let (listens, announces) = (!has("nolisten"), !has("noadvertise"));
            if listens && self.listen[family].is_some() || announces && self.announced[family].is_some() {
                return Ok(Some("a relay has one port of IPv4 and one of IPv6"));
            }
            if listens {
                self.listen[family] = Some(SocketAddr::new(address.unwrap_or(any), port));
            }
            if announces {
                let stated = address.filter(|address| !address.is_unspecified());
                self.announced[family] = Some((stated, port));
            }
        }
        Ok(None)
    }

    fn is_free(&self, family: usize) -> bool {
        self.listen[family].is_none() && self.announced[family].is_none()
    }

    /// The values of `listen`, and of `address` if others can reach the relay over IPv4.
    fn addresses(&self) -> (Vec<String>, Option<Vec<String>>) {
        let listen = self.listen.iter().flatten().map(ToString::to_string).collect();
        let mut all = Vec::new();
        for (announced, public) in self.announced.iter().zip(self.public) {
            let Some((stated, port)) = announced else { continue };
            let address = public.or(*stated);
            all.extend(address.map(|address| SocketAddr::new(address, *port)));
        }
        let has_ipv4 = all.iter().any(SocketAddr::is_ipv4);
        (listen, has_ipv4.then(|| all.iter().map(ToString::to_string).collect()))
    }
}
