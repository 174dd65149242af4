//! Reads the configuration of a Shadow simulation, of either kind.

use crate::document::{DataError, Document};
use crate::shadow::Config;
use crate::{shadow_xml, shadow_yaml};

/// Whether the document looks like a configuration of Shadow.
pub fn looks_like(document: &Document) -> bool {
    is_xml(document) || shadow_yaml::looks_like(document)
}

/// Whether the document looks like a configuration of Shadow 1.
fn is_xml(document: &Document) -> bool {
    let head: String = document.text().chars().take(4096).collect();
    head.trim_start().starts_with('<') && head.contains("<shadow")
}

/// Reads a configuration.
///
/// # Errors
/// If the document is neither YAML of Shadow 2 or 3 nor XML of Shadow 1.
pub fn read(document: &Document) -> Result<Config, DataError> {
    if document.text().trim_start().starts_with('<') {
        shadow_xml::read(document)
    } else {
        shadow_yaml::read(document)
    }
}
