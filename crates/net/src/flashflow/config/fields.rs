//! What the roles' configuration files have in common.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use toml::de::{DeTable, DeValue};

use crate::identity::{Identity, unhex};

/// What is wrong with a configuration, and where.
#[derive(Debug)]
pub struct ConfigError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong, with the place if it is known.
    pub cause: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.cause)
    }
}

impl std::error::Error for ConfigError {}

/// Reads a file, with a notice for every key in it that has a new name.
pub(super) fn read<T: DeserializeOwned>(path: &Path) -> Result<(T, Vec<String>), ConfigError> {
    let fail = |cause: String| ConfigError { path: path.into(), cause };
    let mistake = |cause: toml::de::Error| fail(cause.to_string().trim_end().to_owned());
    let mut text = std::fs::read_to_string(path).map_err(|cause| fail(format!("cannot be read: {cause}")))?;
    let mut renamed = Vec::new();
    snake_case_keys(DeTable::parse(&text).map_err(mistake)?.get_ref(), &mut renamed);
    let mut notices = Vec::new();
    for place in renamed {
        let (line, old) = (text[..place.start].matches('\n').count() + 1, text[place.clone()].to_owned());
        // Of the same length, so that the other places stay where they are.
        let new = old.replace('_', "-");
        notices.push(format!("{}:{line}: `{old}` is now `{new}`", path.display()));
        text.replace_range(place, &new);
    }
    Ok((toml::from_str(&text).map_err(mistake)?, notices))
}

/// Where keys have underscores, as all once had.
fn snake_case_keys(table: &DeTable<'_>, found: &mut Vec<Range<usize>>) {
    for (key, value) in table {
        if key.get_ref().contains('_') {
            found.push(key.span());
        }
        match value.get_ref() {
            DeValue::Table(inner) => snake_case_keys(inner, found),
            DeValue::Array(list) => list.iter().for_each(|item| {
                if let DeValue::Table(inner) = item.get_ref() {
                    snake_case_keys(inner, found);
                }
            }),
            _ => {}
        }
    }
}

/// An identity file beside the configuration, which must be there, be one, and be its owner's alone.
pub(super) fn identity(config: &Path, path: &Path) -> Result<PathBuf, ConfigError> {
    let path = beside(config, path);
    Identity::load(&path).map_err(|cause| ConfigError { path: config.into(), cause: cause.to_string() })?;
    Ok(path)
}

/// A path in a configuration file, seen from where the file is.
pub(super) fn beside(config: &Path, path: &Path) -> PathBuf {
    config.parent().unwrap_or(Path::new("")).join(path)
}

/// A quantity with its unit, as [`tidegate_control::units`] reads it.
pub(super) fn quantity<'de, D: Deserializer<'de>, T: FromStr<Err: fmt::Display>>(
    deserializer: D,
) -> Result<T, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
}

pub(super) fn optional_quantity<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: fmt::Display>,
{
    quantity(deserializer).map(Some)
}

fn bytes<'de, D: Deserializer<'de>, const N: usize>(deserializer: D) -> Result<[u8; N], D::Error> {
    let text = String::deserialize(deserializer)?;
    let text = text.strip_prefix('$').unwrap_or(&text);
    unhex(text).ok_or_else(|| D::Error::custom(format!("expected {} hexadecimal digits", 2 * N)))
}

/// A fingerprint or an identity, in hexadecimal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(transparent)]
pub(super) struct Hex<const N: usize>(#[serde(deserialize_with = "bytes")] pub [u8; N]);
