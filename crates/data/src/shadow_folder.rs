//! The relays of a Shadow configuration in a folder.

use std::collections::BTreeMap;
use std::path::Path;

use crate::consensus::Identity;
use crate::country::Country;
use crate::document::DataError;
use crate::open::{find_packed, open};
use crate::relays::Capacity;
use crate::{gml, shadow, shadow_yaml};

/// Places of the bandwidth file below the folder, as tornettools writes them.
const WEIGHTS: [&str; 2] =
    ["v3bw.init.consensus", "shadow.data.template/hosts/bwauthority/v3bw.init.consensus"];

/// Reads the relays of a Shadow configuration and their bandwidth file.
///
/// Every file may be plain, .xz or .gz.
///
/// # Errors
/// If a file is missing or malformed.
pub(crate) fn relays(folder: &Path) -> Result<BTreeMap<Identity, Capacity>, DataError> {
    let places = WEIGHTS.map(|name| find_packed(folder, name));
    let weights = open(places.iter().find(|place| place.exists()).unwrap_or(&places[0]))?;
    let yaml = find_packed(folder, "shadow.config.yaml");
    if !yaml.exists() {
        return shadow::relays(&open(&find_packed(folder, "shadow.config.xml"))?, &weights);
    }
    let config = open(&yaml)?;
    let graph = shadow_yaml::contents(&config)?.graph.map(|graph| find_packed(folder, &graph));
    let graph = graph.filter(|graph| graph.exists());
    let graph = graph.map(|graph| gml::read(&open(&graph)?)).transpose()?;
    let country = |node: u64| {
        let node = node.to_string();
        let node = graph.as_ref()?.nodes.iter().find(|known| known.id == node)?;
        Country::from_code(node.attributes.get("country_code")?)
    };
    shadow_yaml::relays(&config, &weights, &country)
}
