//! Relays of a Shadow 1 configuration (`shadow.config.xml`): location, links and limits.
//!
//! Their consensus weights are in a separate bandwidth file.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

use crate::consensus::Identity;
use crate::country::Country;
use crate::document::{DataError, Document, quote};
use crate::relays::Capacity;

const CURE: &str = "give a shadow.config.xml of Shadow 1 and the v3bw file that goes with it";

/// A host during the reading of its processes.
struct Host {
    capacity: Capacity,
    identity: Identity,
}

/// Reads the relays of a configuration. `weights` is the bandwidth file that names them (`nick=`).
///
/// # Errors
/// If a document is malformed, or the two documents do not have any relay in common.
pub fn relays(config: &Document, weights: &Document) -> Result<BTreeMap<Identity, Capacity>, DataError> {
    let weighed = weights_by_name(weights)?;
    let total: f64 = weighed.values().map(|(_, weight)| weight).sum();
    let mut xml = Reader::from_str(config.text());
    xml.config_mut().expand_empty_elements = true;
    let mut relays = BTreeMap::new();
    let mut open: Option<Host> = None;
    loop {
        let at = xml.buffer_position() as usize;
        let event = xml
            .read_event()
            .map_err(|error| config.error_at_byte(at, format!("is not well-formed XML: {error}"), CURE))?;
        match event {
            Event::Start(element) if element.local_name().as_ref() == "host" => {
                open = host(config, at, &element, &weighed, total)?;
            }
            Event::Start(element) if element.local_name().as_ref() == "process" => {
                if let (Some(host), Some(arguments)) = (&mut open, attribute(&element, "arguments")) {
                    limit(&mut host.capacity, &arguments);
                }
            }
            Event::End(element) if element.local_name().as_ref() == "host" => {
                if let Some(host) = open.take() {
                    relays.insert(host.identity, host.capacity);
                }
            }
            Event::Eof => break,
            _ => {}
        }
    }
    if relays.is_empty() {
        return Err(config.error("does not hold any relay of the bandwidth file", CURE));
    }
    Ok(relays)
}

/// Parses lines of `node_id=$... bw=... nick=...`: identity and weight by name.
pub(crate) fn weights_by_name(weights: &Document) -> Result<BTreeMap<&str, (Identity, f64)>, DataError> {
    let mut by_name = BTreeMap::new();
    for (line, text) in weights.lines() {
        let value = |key: &str| text.split_whitespace().find_map(|part| part.strip_prefix(key));
        let (Some(id), Some(weight), Some(name)) = (value("node_id="), value("bw="), value("nick=")) else {
            continue;
        };
        let identity = Identity::from_hex(id)
            .ok_or_else(|| weights.error_at(line, format!("{} is no identity", quote(id)), CURE))?;
        let weight = weight.parse::<f64>().ok().filter(|weight| weight.is_finite() && *weight >= 0.0);
        let weight = weight.ok_or_else(|| weights.error_at(line, "`bw` is not a weight", CURE))?;
        by_name.insert(name, (identity, weight));
    }
    Ok(by_name)
}

fn attribute(element: &BytesStart<'_>, name: &str) -> Option<String> {
    let found = element.attributes().flatten().find(|attribute| attribute.key.as_ref() == name)?;
    quick_xml::escape::unescape(&found.value).ok().map(|value| value.into_owned())
}

/// Reads a host; `None` if it is an authority or the bandwidth file does not name it.
fn host(
    config: &Document,
    at: usize,
    element: &BytesStart<'_>,
    weighed: &BTreeMap<&str, (Identity, f64)>,
    total: f64,
) -> Result<Option<Host>, DataError> {
    let Some(name) = attribute(element, "id").filter(|name| name.starts_with("relay")) else {
        return Ok(None);
    };
    let Some((identity, weight)) = weighed.get(name.as_str()) else { return Ok(None) };
    let rate = |key: &str| -> Result<u64, DataError> {
        let text = attribute(element, key).unwrap_or_default();
        let kib = text.parse::<u64>().ok().filter(|kib| *kib > 0 && *kib < 1 << 40);
        let cause = || format!("relay {} lacks a `{key}` in KiB/s", quote(&name));
        Ok(kib.ok_or_else(|| config.error_at_byte(at, cause(), CURE))? * 1024)
    };
    // A relay forwards each byte, so the slower direction limits it.
    let link = rate("bandwidthup")?.min(rate("bandwidthdown")?);
    let share = |flag: bool| if flag { 1.0 } else { 0.0 };
    let capacity = Capacity {
        name: name.clone(),
        country: attribute(element, "countrycodehint").as_deref().and_then(Country::from_code),
        address: attribute(element, "iphint").and_then(|text| text.parse::<Ipv4Addr>().ok()),
        weight: weight / total,
        capacity_bytes_per_s: link,
        rate_bytes_per_s: u64::MAX,
        burst_bytes: u64::MAX,
        running: 1.0,
        guard: share(name.contains("guard")),
        exit: share(name.contains("exit")),
    };
    Ok(Some(Host { capacity, identity: *identity }))
}

/// Parses `--BandwidthRate 1073741824 --BandwidthBurst 1073741824` among tor's arguments.
pub(crate) fn limit(capacity: &mut Capacity, arguments: &str) {
    let words: Vec<&str> = arguments.split_whitespace().collect();
    for pair in words.windows(2) {
        match (pair[0], pair[1].parse::<u64>()) {
            ("--BandwidthRate", Ok(rate)) => capacity.rate_bytes_per_s = rate,
            ("--BandwidthBurst", Ok(burst)) => capacity.burst_bytes = burst,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(text: &str) -> Document {
        Document::new("x", text).unwrap()
    }

    #[test]
    fn relays_have_links_limits_and_weights() {
        let config = document(
            "<shadow><host id=\"4uthority1\" bandwidthup=\"1\"/>\
             <host id=\"relay1exitguard\" iphint=\"1.2.3.4\" countrycodehint=\"FR\" bandwidthdown=\"200\" \
             bandwidthup=\"100\"><process arguments=\"-f x --BandwidthRate 5000 --BandwidthBurst 6000\"/></host>\
             <host id=\"relay2middle\" bandwidthdown=\"7\" bandwidthup=\"7\"></host></shadow>",
        );
        let line = |byte: &str, rest: &str| format!("node_id=${}\t{rest}\n", byte.repeat(20));
        let weights = document(
            &("1\n".to_owned()
                + &line("0a", "bw=3\tnick=relay1exitguard")
                + &line("0b", "bw=1\tnick=relay2middle")),
        );
        let relays = relays(&config, &weights).unwrap();
        let one = &relays[&Identity([10; 20])];
        assert_eq!(
            (one.capacity_bytes_per_s, one.rate_bytes_per_s, one.burst_bytes),
            (102_400, 5_000, 6_000)
        );
        assert_eq!((one.guard, one.exit, one.weight), (1.0, 1.0, 0.75));
        assert_eq!(one.country, Country::from_code("FR"));
        assert_eq!(relays[&Identity([11; 20])].guard, 0.0);
    }

    #[test]
    fn other_documents_are_refused() {
        let weights = document("1\n");
        for bad in ["<shadow></shadow>", "<shadow", "relay1"] {
            assert!(relays(&document(bad), &weights).is_err(), "{bad}");
        }
        let line = format!("node_id=${}\tbw=3\tnick=relay1\n", "0a".repeat(20));
        let bad = document("<shadow><host id=\"relay1\" bandwidthup=\"x\" bandwidthdown=\"1\"/></shadow>");
        assert!(relays(&bad, &document(&line)).is_err());
    }
}
