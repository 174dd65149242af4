//! Choosing the reader of a latency file or of a table of relays by its content.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::consensus::Identity;
use crate::country::Country;
use crate::document::{DataError, Document};
use crate::latency::LatencyTable;
use crate::latency_graph::BareNumbers;
use crate::relays::Capacity;
use crate::{gml, graphml, latency_csv, latency_graph, open, relays, shadow, shadow_yaml};

/// The kinds of latency data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DocumentKind {
    /// GML in Shadow's dialect.
    Gml,
    /// GraphML, as of Shadow 1.
    GraphMl,
    /// WonderProxy's pings between cities; needs the table of servers beside it.
    WonderProxy,
    /// RIPE Atlas' round-trip times between countries.
    RipeCountries,
    /// A square matrix of round-trip times.
    Matrix,
}

/// What kind of latency data a document holds, by its first lines.
///
/// # Errors
/// If it is none of them.
pub fn kind(document: &Document) -> Result<DocumentKind, DataError> {
    let first = document.text().lines().find(|line| !line.trim().is_empty()).unwrap_or("");
    let columns: Vec<&str> = first.split(',').map(str::trim).collect();
    let has = |wanted: &[&str]| wanted.iter().all(|name| columns.contains(name));
    if graphml::looks_like(document) {
        return Ok(DocumentKind::GraphMl);
    }
    if has(&["source", "destination", "avg"]) {
        return Ok(DocumentKind::WonderProxy);
    }
    if has(&["cty1", "cty2", "rtt_avg"]) {
        return Ok(DocumentKind::RipeCountries);
    }
    if has(&["id", "title", "country"]) {
        return Err(
            document.error("is the table of servers, without delays", "give the pings that go with it")
        );
    }
    if first.split_whitespace().all(|word| word.parse::<f64>().is_ok()) {
        return Ok(DocumentKind::Matrix);
    }
    if gml::looks_like(document) {
        return Ok(DocumentKind::Gml);
    }
    Err(document.error(
        "is no latency data known here",
        "give Shadow's GML or GraphML, WonderProxy pings, RIPE country pairs, or a matrix of round-trip times",
    ))
}

/// Where tornettools leaves the bandwidth file of its authorities, below the folder of the configuration.
const WEIGHTS: [&str; 2] =
    ["v3bw.init.consensus", "shadow.data.template/hosts/bwauthority/v3bw.init.consensus"];

/// A file of this name in a folder, plain, .xz or .gz; the plain one if there is none.
pub fn inside(folder: &Path, name: &str) -> PathBuf {
    let ways = ["", ".xz", ".gz"].map(|ending| folder.join(format!("{name}{ending}")));
    ways.iter().find(|way| way.exists()).unwrap_or(&ways[0]).clone()
}

/// Opens a table of relays of any kind: `relayinfo_staging_*.json`, server descriptors, or a folder with Shadow's
/// `shadow.config.xml` or `shadow.config.yaml`, and its bandwidth file `v3bw.init.consensus` there or where tornettools
/// leaves it (each plain, .xz or .gz).
///
/// # Errors
/// If there is no such file, or it is none of these.
pub fn relays(path: &Path) -> Result<BTreeMap<Identity, Capacity>, DataError> {
    if path.is_dir() {
        let places = WEIGHTS.map(|name| inside(path, name));
        let weights = open::open(places.iter().find(|place| place.exists()).unwrap_or(&places[0]))?;
        let yaml = inside(path, "shadow.config.yaml");
        if !yaml.exists() {
            return shadow::relays(&open::open(&inside(path, "shadow.config.xml"))?, &weights);
        }
        let config = open::open(&yaml)?;
        let graph = shadow_yaml::contents(&config)?.graph.map(|graph| inside(path, &graph));
        let graph = graph.filter(|graph| graph.exists());
        let graph = graph.map(|graph| gml::read(&open::open(&graph)?)).transpose()?;
        let country = |node: u64| {
            let node = node.to_string();
            let node = graph.as_ref()?.nodes.iter().find(|known| known.id == node)?;
            Country::from_code(node.attributes.get("country_code")?)
        };
        return shadow_yaml::relays(&config, &weights, &country);
    }
    let document = open::open(path)?;
    if document.text().trim_start().starts_with('{') {
        relays::capacities(&document)
    } else {
        relays::descriptors(&document)
    }
}

/// Opens and reads a latency file of any kind. For WonderProxy's pings the table of servers is the one
/// `servers*.csv` (plain, .xz or .gz) in the same directory.
///
/// # Errors
/// If a file cannot be opened, is of no known kind, or is malformed.
pub fn latency(path: &Path) -> Result<LatencyTable, DataError> {
    let document = open::open(path)?;
    match kind(&document)? {
        DocumentKind::Gml => latency_graph::table(&document, &gml::read(&document)?, BareNumbers::Refused),
        DocumentKind::GraphMl => {
            latency_graph::table(&document, &graphml::read(&document)?, BareNumbers::Shadow1)
        }
        DocumentKind::WonderProxy => {
            latency_csv::wonderproxy(&document, &open::open(&servers_beside(path, &document)?)?)
        }
        DocumentKind::RipeCountries => latency_csv::ripe_countries(&document),
        DocumentKind::Matrix => latency_csv::matrix(&document),
    }
}

fn servers_beside(path: &Path, document: &Document) -> Result<PathBuf, DataError> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let is_servers = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let packed = name.strip_suffix(".xz").or(name.strip_suffix(".gz"));
        name.starts_with("servers") && packed.unwrap_or(&name).ends_with(".csv")
    };
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_servers).collect();
    match (found.pop(), found.is_empty()) {
        (Some(servers), true) => Ok(servers),
        (one, _) => {
            let how_many = if one.is_some() { "more than one" } else { "no" };
            let cause =
                format!("holds pings between numbered servers, but {how_many} `servers*.csv` is beside it");
            Err(document.error(cause, "put the one table of servers into the same directory"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_is_told_by_content() {
        let of = |text: &str| kind(&Document::new("x", text).unwrap());
        assert_eq!(of("graph [ node [ id 0 ] ]"), Ok(DocumentKind::Gml));
        assert_eq!(of("# comment\nCreator \"x\"\ngraph [ ]"), Ok(DocumentKind::Gml));
        assert_eq!(of("<?xml version='1.0'?>\n<graphml>"), Ok(DocumentKind::GraphMl));
        assert_eq!(of("source,destination,min,avg,max,mdev\n"), Ok(DocumentKind::WonderProxy));
        assert_eq!(of("cty1,cty2,rtt_cnt,rtt_avg\n"), Ok(DocumentKind::RipeCountries));
        assert_eq!(of("0 1.5\n1.5 0\n"), Ok(DocumentKind::Matrix));
        assert!(of("id,name,title,country\n").unwrap_err().cause.contains("servers"));
        for none in ["hello", "<html>", "network-status-version 3\n", "{}"] {
            assert!(of(none).is_err(), "{none}");
        }
    }
}
