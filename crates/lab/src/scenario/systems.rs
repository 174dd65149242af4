//! Expands `[[combine]]` and `[every-system]` before serde reads systems, and reads their parts.
//!
//! Each `[[combine]]` is one choice: named alternatives, each a set of keys of a system. A combination takes one
//! alternative of each choice, in the order of the file, and is named after them: `pctcp-ewma-vegas`.

use std::borrow::Cow;

use serde_json::Value;
use tidegate_control::keys::Wrong;
use tidegate_proto::combinations::Neighbours;
use tidegate_proto::system::{SCHEMA, SystemConfig};
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

use crate::input::{InputError, SourceFile, suggest};

/// A scenario with more combinations is most likely a mistake.
const MAX_COMBINATIONS: usize = 1000;

/// Adds a `[[system]]` per combination, then adds the keys of `[every-system]` that a system lacks. Returns the number of
/// systems that are not combinations.
pub(super) fn spread(document: &mut DeTable<'_>, source: &SourceFile) -> Result<usize, InputError> {
    let written = document.get("system").map_or(0, |systems| match systems.get_ref() {
        DeValue::Array(systems) => systems.len(),
        _ => 0,
    });
    combine(document, source)?;
    share_system_keys(document);
    Ok(written)
}

/// Adds a `[[system]]` for each combination.
fn combine<'a>(document: &mut DeTable<'a>, source: &SourceFile) -> Result<(), InputError> {
    let Some(choices) = document.remove("combine") else { return Ok(()) };
    let span = choices.span();
    let no_alternatives = |span| {
        let cause = "a [[combine]] table holds alternatives, each a table with keys of a system";
        Err(source.error(span, cause, "write it like `pctcp = { transport = \"pctcp\" }`"))
    };
    let DeValue::Array(choices) = choices.into_inner() else { return no_alternatives(span) };
    // Start with the empty combination and extend it by each choice.
    let mut combined: Vec<(String, DeTable<'a>)> = vec![Default::default()];
    for choice in choices {
        let span = choice.span();
        let DeValue::Table(alternatives) = choice.into_inner() else { return no_alternatives(span) };
        let mut longer = Vec::new();
        if combined.len() * alternatives.len() > MAX_COMBINATIONS {
            let cause = format!("there are more than {MAX_COMBINATIONS} combinations");
            return Err(source.error(span, cause, "remove a [[combine]] table or alternatives"));
        }
        if alternatives.is_empty() {
            return no_alternatives(span);
        }
        for (name, keys) in &alternatives {
            let DeValue::Table(keys) = keys.get_ref() else { return no_alternatives(keys.span()) };
            for (so_far, system) in &combined {
                let dash = if so_far.is_empty() { "" } else { "-" };
                let mut system = system.clone();
                merge(&mut system, keys.clone(), true)
                    .map_err(|(cause, cure)| source.error(span.clone(), cause, cure))?;
                longer.push((format!("{so_far}{dash}{}", name.get_ref()), system));
            }
        }
        combined = longer;
    }
    let systems = combined.into_iter().map(|(name, mut system)| {
        let key = Spanned::new(span.clone(), Cow::Borrowed("name"));
        system.insert(key, Spanned::new(span.clone(), DeValue::String(Cow::Owned(name))));
        Spanned::new(span.clone(), DeValue::Table(system))
    });
    match document.get_mut("system").map(Spanned::get_mut) {
        Some(DeValue::Array(others)) => systems.for_each(|system| others.push(system)),
        Some(_) => {}
        None => {
            let key = Spanned::new(span.clone(), Cow::Borrowed("system"));
            document.insert(key, Spanned::new(span.clone(), DeValue::Array(systems.collect())));
        }
    }
    Ok(())
}

/// Copies the keys of `[every-system]` into each `[[system]]` that does not have them.
fn share_system_keys(document: &mut DeTable<'_>) {
    let is_table = |value: &Spanned<DeValue<'_>>| matches!(value.get_ref(), DeValue::Table(_));
    if !document.get("every-system").is_some_and(is_table) {
        return;
    }
    let Some(DeValue::Table(shared)) = document.remove("every-system").map(Spanned::into_inner) else {
        return;
    };
    if let Some(DeValue::Array(systems)) = document.get_mut("system").map(Spanned::get_mut) {
        for system in systems.iter_mut() {
            if let DeValue::Table(system) = system.get_mut() {
                merge(system, shared.clone(), false).expect("merge fails only when it replaces");
            }
        }
    }
}

/// Merges `more` into `table`. Nested tables are merged; other existing values are overwritten if `replace`.
///
/// For a list of tables with names (`[[user]]`, `[[system]]`, ...) the next key selects an entry by name:
/// `user.web.count = 5`.
///
/// # Errors
/// (cause, cure) if no entry has that name.
pub(super) fn merge<'a>(
    table: &mut DeTable<'a>,
    more: DeTable<'a>,
    replace: bool,
) -> Result<(), (String, String)> {
    for (key, value) in more {
        let list = key.get_ref().clone();
        match (table.get_mut(key.get_ref().as_ref()).map(Spanned::get_mut), value.get_ref()) {
            (Some(DeValue::Table(inner)), DeValue::Table(additions)) => {
                merge(inner, additions.clone(), replace)?;
            }
            (Some(DeValue::Array(entries)), DeValue::Table(additions)) if replace => {
                for (name, change) in additions.clone() {
                    let known =
                        entries.iter().filter_map(|entry| name_of(entry.get_ref())).map(str::to_owned);
                    // Collected first, because the search below borrows the entries mutably.
                    let known: Vec<String> = known.collect();
                    let wanted = name.get_ref().as_ref();
                    let entry = entries.iter_mut().find(|entry| name_of(entry.get_ref()) == Some(wanted));
                    match (entry.map(Spanned::get_mut), change.into_inner()) {
                        (Some(DeValue::Table(entry)), DeValue::Table(change)) => merge(entry, change, true)?,
                        (Some(_), _) => {
                            let cure = format!("write it like `{list}.{wanted}.KEY = VALUE`");
                            return Err((
                                format!("`{list}.{wanted}` is an entry of [[{list}]], not a key"),
                                cure,
                            ));
                        }
                        (None, _) => {
                            let known: Vec<&str> = known.iter().map(String::as_str).collect();
                            return Err((
                                format!("there is no [[{list}]] with the name `{wanted}`"),
                                suggest(wanted, &known),
                            ));
                        }
                    }
                }
            }
            (Some(old), _) if replace => *old = value.into_inner(),
            (Some(_), _) => {}
            (None, _) => {
                table.insert(key, value);
            }
        }
    }
    Ok(())
}

/// The `name` of a table in a list.
fn name_of<'a>(entry: &'a DeValue<'_>) -> Option<&'a str> {
    let DeValue::Table(table) = entry else { return None };
    match table.get("name")?.get_ref() {
        DeValue::String(name) => Some(name.as_ref()),
        _ => None,
    }
}

/// The parts of all systems, and the combinations that do not run.
pub(super) struct Parts {
    /// Each with its table as written, without defaults.
    pub systems: Vec<(SystemConfig, Value)>,
    /// Names of combinations that are left out, and why.
    pub left_out: Vec<(String, String)>,
}

/// Reads and removes the parts of every system from a checked document; other keys stay. Removes the systems behind the
/// first `written`, which `[[combine]]` has made, if their parts do not go together.
pub(super) fn take_parts(document: &mut DeTable<'_>, value: &Value, written: usize) -> Result<Parts, Wrong> {
    let is_part = |key: &str| SCHEMA["properties"].get(key).is_some();
    let (mut systems, mut left_out) = (Vec::new(), Vec::new());
    let (mut kept, mut first_refusal) = (Vec::new(), None);
    for (number, table) in value["system"].as_array().into_iter().flatten().enumerate() {
        let at = |wrong: Wrong| wrong.below(&number.to_string()).below("system");
        let keys = table.as_object().into_iter().flatten();
        let parts =
            keys.filter(|(key, _)| is_part(key)).map(|(key, value)| (key.clone(), value.clone())).collect();
        let system = SystemConfig::parse(&parts).map_err(at)?;
        let refusal = system.check(Neighbours::Alike);
        kept.push(refusal.is_ok());
        match refusal {
            Ok(()) => systems.push((system, table.clone())),
            Err(wrong) if number < written => return Err(at(wrong)),
            Err(wrong) => {
                left_out.push((table["name"].as_str().unwrap_or_default().to_owned(), wrong.cause.clone()));
                first_refusal.get_or_insert(at(wrong));
            }
        }
    }
    if let Some(wrong) = first_refusal.filter(|_| systems.is_empty()) {
        return Err(wrong);
    }
    if let Some(DeValue::Array(all)) = document.get_mut("system").map(Spanned::get_mut) {
        let every = std::mem::replace(all, DeArray::new());
        every.into_iter().zip(kept).filter(|(_, kept)| *kept).for_each(|(system, _)| all.push(system));
    }
    for system in tables(document, "system") {
        let keys: Vec<String> = system.keys().map(|key| key.get_ref().to_string()).collect();
        keys.iter().filter(|key| is_part(key)).for_each(|key| _ = system.remove(key.as_str()));
    }
    Ok(Parts { systems, left_out })
}

/// The tables of `[[name]]`.
fn tables<'a, 'b>(document: &'b mut DeTable<'a>, name: &str) -> impl Iterator<Item = &'b mut DeTable<'a>> {
    let all = match document.get_mut(name).map(Spanned::get_mut) {
        Some(DeValue::Array(all)) => all.iter_mut().collect(),
        _ => Vec::new(),
    };
    all.into_iter().filter_map(|table| match table.get_mut() {
        DeValue::Table(table) => Some(table),
        _ => None,
    })
}
