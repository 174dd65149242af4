//! Reader of Shadow 1's configurations (`shadow.config.xml`).

use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};
use tidegate_control::units::Rate;

use crate::country::Country;
use crate::document::{DataError, Document, quote};
use crate::shadow::{self, Config, Host, NetworkGraph, Process, program};

const CURE: &str = "give a shadow.config.xml of Shadow 1";

/// Reads a configuration.
///
/// # Errors
/// If the document is not XML of Shadow 1, or a number is malformed.
pub(crate) fn read(document: &Document) -> Result<Config, DataError> {
    let mut xml = Reader::from_str(document.text());
    xml.config_mut().expand_empty_elements = true;
    let mut config = Config::default();
    let (mut topology, mut root) = (false, false);
    loop {
        let at = xml.buffer_position() as usize;
        let event = xml
            .read_event()
            .map_err(|error| document.error_at_byte(at, format!("is not well-formed XML: {error}"), CURE))?;
        match event {
            Event::Start(element) => match element.local_name().as_ref() {
                "shadow" => {
                    root = true;
                    let stop = attribute(&element, "stoptime");
                    config.stop = stop.and_then(|text| shadow::seconds(text.parse().ok()?));
                }
                "topology" => {
                    topology = true;
                    if let Some(path) = attribute(&element, "path") {
                        config.graph = NetworkGraph::File(path);
                    }
                }
                // Old files call hosts nodes.
                "host" | "node" => config.hosts.push(host(document, at, &element)?),
                "process" | "application" => {
                    if let Some(host) = config.hosts.last_mut() {
                        let of = |key| attribute(&element, key).unwrap_or_default();
                        let (program, arguments) = (program(&of("plugin")), of("arguments"));
                        host.processes.push(Process { program, arguments, count: 1 });
                    }
                }
                _ => {}
            },
            Event::CData(text) if topology => config.graph = NetworkGraph::Inline(text.to_string()),
            Event::End(element) if element.local_name().as_ref() == "topology" => topology = false,
            Event::Eof => break,
            _ => {}
        }
    }
    if !root {
        return Err(document.error("does not hold a `shadow` element", CURE));
    }
    Ok(config)
}

fn attribute(element: &BytesStart<'_>, name: &str) -> Option<String> {
    let found = element.attributes().flatten().find(|attribute| attribute.key.as_ref() == name)?;
    quick_xml::escape::unescape(&found.value).ok().map(|value| value.into_owned())
}

fn host(document: &Document, at: usize, element: &BytesStart<'_>) -> Result<Host, DataError> {
    let name = attribute(element, "id").unwrap_or_default();
    let number = |key: &str| -> Result<Option<u32>, DataError> {
        let Some(text) = attribute(element, key) else { return Ok(None) };
        let cause = || format!("`{key}` of host {} is {}, not a number", quote(&name), quote(&text));
        text.trim().parse().map(Some).map_err(|_| document.error_at_byte(at, cause(), CURE))
    };
    let rate = |key: &str| -> Result<Option<Rate>, DataError> {
        Ok(number(key)?.map(|kib| Rate::from_bytes_per_s(u64::from(kib) * 1024)))
    };
    let quantity = attribute(element, "quantity").map(|text| {
        shadow::quantity(&text).ok_or_else(|| {
            let cause = format!("`quantity` of host {} is {}", quote(&name), quote(&text));
            document.error_at_byte(at, cause, shadow::QUANTITY)
        })
    });
    let quantity = quantity.transpose()?;
    Ok(Host {
        count: quantity.unwrap_or(1),
        country: attribute(element, "countrycodehint").as_deref().and_then(Country::from_code),
        address: attribute(element, "iphint").and_then(|text| text.parse().ok()),
        up: rate("bandwidthup")?,
        down: rate("bandwidthdown")?,
        name,
        node: None,
        line: None,
        processes: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use tidegate_control::units::Span;

    use super::*;
    use crate::shadow::Role;

    fn parse(text: &str) -> Result<Config, DataError> {
        read(&Document::new("shadow.config.xml", text).unwrap())
    }

    #[test]
    fn hosts_have_links_places_and_programs() {
        let config = parse(
            "<shadow stoptime=\"3600\"><topology><![CDATA[<graphml/>]]></topology>\n\
             <host id=\"4uthority1\" bandwidthup=\"1\"/>\
             <host id=\"relay1exitguard\" iphint=\"1.2.3.4\" countrycodehint=\"FR\" bandwidthdown=\"200\" \
             bandwidthup=\"100\"><process plugin=\"tor\" arguments=\"-f x --BandwidthRate 5000\"/></host>\
             <host id=\"client\" quantity=\"5\"><process plugin=\"tgen\" arguments=\"a.xml\"/></host></shadow>",
        )
        .unwrap();
        assert_eq!(config.graph, NetworkGraph::Inline("<graphml/>".into()));
        assert_eq!(config.stop, Some(Span::from_secs(3600)));
        let relay = &config.hosts[1];
        assert_eq!((relay.up, relay.down), (Some(Rate(819_200)), Some(Rate(1_638_400))));
        assert_eq!((relay.country, relay.role()), (Country::from_code("FR"), Role::Relay));
        assert_eq!((config.hosts[2].count, config.hosts[2].role()), (5, Role::DirectClient));
    }

    #[test]
    fn other_documents_are_refused() {
        for (bad, cause) in [
            ("<graphml></graphml>", "does not hold a `shadow`"),
            ("<shadow", "is not well-formed"),
            ("<shadow><host id=\"a\" bandwidthup=\"x\"/></shadow>", "`bandwidthup` of host `a` is `x`"),
            ("<shadow><host id=\"a\" quantity=\"-1\"/></shadow>", "`quantity` of host"),
            ("<shadow><host id=\"a\" quantity=\"0\"/></shadow>", "`quantity` of host `a` is `0`"),
        ] {
            let refused = parse(bad).unwrap_err();
            assert!(refused.cause.contains(cause), "{bad}: {refused}");
        }
    }
}
