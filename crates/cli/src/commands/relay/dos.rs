//! The `[dos]` table of a relay: parameters against denial of service by the names of tor's options.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use serde_json::Value;
use tidegate_lab::input::{InputError, SourceFile, suggest};
use tidegate_proto::defence::OPTIONS;
use toml::Spanned;

/// Starts of the names of each defence's options. The option that turns it on ends with `Enabled`.
const DEFENCES: [&str; 3] = ["DoSCircuitCreation", "DoSConnection", "DoSStreamCreation"];

/// Reads the table. `has_consensus`: whether a consensus can turn defences on.
pub(super) fn read(
    table: &BTreeMap<String, Spanned<Value>>,
    has_consensus: bool,
    source: &SourceFile,
) -> Result<BTreeMap<String, i32>, InputError> {
    let mut read = BTreeMap::new();
    for (name, value) in table {
        let fail = |(cause, cure): (String, String)| source.error(value.span(), cause, cure);
        let Some((_, allowed)) = OPTIONS.iter().find(|(known, _)| known == name) else {
            return Err(fail(unknown(name)));
        };
        read.insert(name.clone(), number(name, value.get_ref(), allowed).map_err(fail)?);
    }
    for (name, value) in table {
        if let Some(enabled) = without_effect(name, &read, has_consensus) {
            let cause = format!("dos.{name} has no effect: the defence is off");
            let cure = format!("set {enabled} = 1, or remove {name}");
            return Err(source.error(value.span(), cause, cure));
        }
    }
    Ok(read)
}

/// The option that would have to be 1, if an option has no effect.
pub(super) fn without_effect(
    name: &str,
    table: &BTreeMap<String, i32>,
    has_consensus: bool,
) -> Option<String> {
    let defence = DEFENCES.iter().find(|defence| name.starts_with(**defence))?;
    let enabled = format!("{defence}Enabled");
    let is_on = table.get(&enabled).map_or(has_consensus, |enabled| *enabled == 1);
    (name != enabled && !is_on).then_some(enabled)
}

fn unknown(name: &str) -> (String, String) {
    let known = OPTIONS.map(|(known, _)| known);
    let name = name.escape_debug().to_string();
    let cure = match known.iter().find(|known| known.eq_ignore_ascii_case(&name)) {
        Some(same) => format!("did you mean `{same}`?"),
        None => suggest(&name, &known),
    };
    (format!("dos.{name} is not an option against denial of service"), cure)
}

/// The value of an option, or cause and cure.
fn number(name: &str, value: &Value, allowed: &RangeInclusive<i32>) -> Result<i32, (String, String)> {
    let number = value.as_i64().and_then(|number| i32::try_from(number).ok());
    if let Some(number) = number.filter(|number| allowed.contains(number)) {
        return Ok(number);
    }
    let unit = if name.ends_with("Period") { " seconds" } else { "" };
    let (low, high) = (allowed.start(), allowed.end());
    let cure = match value.as_str() {
        Some("auto") => format!("remove {name} to obey the consensus, or set {low} to {high}{unit}"),
        _ => format!("set a whole number from {low} to {high}{unit}, or remove {name} to obey the consensus"),
    };
    Err((format!("dos.{name} is {value}"), cure))
}
