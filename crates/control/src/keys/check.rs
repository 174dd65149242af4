//! Checks a file against its schema.

use std::fmt::{self, Display};
use std::str::FromStr;

use serde_json::Value;

use super::list::{PAIR, example, form, holds_keys, names, permitted, range};
use super::suggest::suggest;
use crate::units::{Bytes, Rate, Span};

/// The first mistake in a file, with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// Keys and indices of list items from the root to the place.
    pub path: Vec<String>,
    /// Whether the mistake is in the key, not in its value.
    pub at_key: bool,
    /// The mistake.
    pub cause: String,
    /// How to fix it; may be empty.
    pub cure: String,
}

impl Wrong {
    /// The same mistake, seen from the table that holds this one under `key`.
    pub fn below(mut self, key: &str) -> Wrong {
        self.path.insert(0, key.to_owned());
        self
    }
}

impl Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.cause)?;
        if self.cure.is_empty() { Ok(()) } else { write!(f, "; {}", self.cure) }
    }
}

impl std::error::Error for Wrong {}

/// Checks keys, types, names, units and ranges of a file, before serde reads it.
///
/// Strings with a format of their own (a queue, a buffer) are left to serde.
///
/// # Errors
/// The first mistake.
pub fn check(schema: &Value, file: &Value) -> Result<(), Wrong> {
    look(schema, file, &mut Vec::new())
}

fn look(schema: &Value, value: &Value, path: &mut Vec<String>) -> Result<(), Wrong> {
    match value {
        Value::Object(table) if holds_keys(schema) => {
            for (key, inner) in table {
                path.push(key.clone());
                let known = schema["properties"].get(key);
                match known.or_else(|| schema.get("additionalProperties").filter(|any| any.is_object())) {
                    Some(known) => {
                        if let Some(cure) = mistaken(schema, key, inner) {
                            return Err(wrong(path, false, unknown_name(key, inner), cure));
                        }
                        look(known, inner, path)?;
                    }
                    None => {
                        let known: Vec<&str> = schema["properties"]
                            .as_object()
                            .into_iter()
                            .flatten()
                            .map(|(key, _)| key.as_str())
                            .collect();
                        return Err(wrong(path, true, format!("unknown key `{key}`"), suggest(key, &known)));
                    }
                }
                path.pop();
            }
            let missing = |name: &&Value| name.as_str().is_some_and(|name| !table.contains_key(name));
            match schema["required"].as_array().into_iter().flatten().find(missing) {
                Some(name) => {
                    let name = name.as_str().unwrap_or_default();
                    let cure = format!("add `{name}`: {}", form(&schema["properties"][name]));
                    Err(wrong(path, false, format!("`{name}` is missing"), cure))
                }
                None => Ok(()),
            }
        }
        Value::Array(list) if schema["type"] == "array" => {
            check_length(schema, list.len(), path)?;
            for (number, inner) in list.iter().enumerate() {
                path.push(number.to_string());
                let items = &schema["items"];
                look(items.get(number).unwrap_or(items), inner, path)?;
                path.pop();
            }
            Ok(())
        }
        // A range to draw from: each end must be a valid value.
        Value::Array(list) if schema["x-form"].as_str().is_some_and(|form| form.ends_with(PAIR)) => {
            list.iter().try_for_each(|end| one(schema, end, path))
        }
        _ => one(schema, value, path),
    }
}

/// The key that a path leads to, without indices of list items.
fn key_of(path: &[String]) -> &str {
    path.iter().rev().find(|step| step.parse::<usize>().is_err()).map_or("the file", String::as_str)
}

fn check_length(schema: &Value, count: usize, path: &[String]) -> Result<(), Wrong> {
    let limit = |keyword: &str| schema[keyword].as_u64().and_then(|limit| usize::try_from(limit).ok());
    let too_short = limit("minItems").is_some_and(|least| count < least);
    if !too_short && limit("maxItems").is_none_or(|most| count <= most) {
        return Ok(());
    }
    let values = if count == 1 { "value" } else { "values" };
    let cause = format!("`{}` has {count} {values}, expected {}", key_of(path), form(schema));
    Err(wrong(path, false, cause, schema["x-length"].as_str().unwrap_or_default().to_owned()))
}

/// The cure if a key has a name that only other keys of the same table take.
fn mistaken(table: &Value, key: &str, value: &Value) -> Option<String> {
    let name = value.as_str()?;
    let properties = table["properties"].as_object()?;
    let takes = |schema: &Value| names(schema).is_some_and(|names| names.contains(&name));
    let own = properties.get(key)?;
    // Keys of several families take `none`.
    if names(own).is_none() || takes(own) || name == "none" {
        return None;
    }
    let others: Vec<&String> =
        properties.iter().filter(|(_, schema)| takes(schema)).map(|(other, _)| other).collect();
    let join = |text: &dyn Fn(&String) -> String| {
        others.iter().map(|other| text(other)).collect::<Vec<_>>().join(" or ")
    };
    let (kinds, statements) =
        (join(&|other| format!("a `{other}`")), join(&|other| format!("`{other} = \"{name}\"`")));
    (!others.is_empty()).then(|| format!("`{name}` is {kinds}: write {statements}"))
}

fn unknown_name(key: &str, value: &Value) -> String {
    format!("there is no {} `{}`", key.replace('-', " "), value.as_str().unwrap_or_default())
}

/// The cure for a value in place of a table: the value under the first key that takes it, or an example.
fn as_table(schema: &Value, key: &str, value: &Value) -> String {
    let keys = || schema["properties"].as_object().into_iter().flatten();
    // Texts with a format of their own are left to serde, so any value would pass.
    let takes = |known: &Value| {
        (value.is_string() || known.get("x-form").is_none()) && look(known, value, &mut Vec::new()).is_ok()
    };
    let fitting = keys().find(|(_, known)| takes(known)).map(|(name, _)| (name, value.to_string()));
    let inner = fitting.or_else(|| keys().find_map(|(name, known)| Some((name, example(known)?))));
    inner.map_or_else(String::new, |(name, value)| format!("write it like `{key} = {{ {name} = {value} }}`"))
}

fn one(schema: &Value, value: &Value, path: &[String]) -> Result<(), Wrong> {
    let key = key_of(path);
    let fail = |cause: String, cure: String| Err(wrong(path, false, cause, cure));
    let default = || {
        let range = permitted(schema).map(|range| format!("permitted: {range}"));
        let default = schema.get("default").map(|default| format!("the default is {default}"));
        let parts: Vec<String> = range.into_iter().chain(default).collect();
        if parts.is_empty() { form(schema) } else { parts.join("; ") }
    };
    let out_of_range = || fail(format!("`{key}` is not in {}", range(schema).unwrap_or_default()), default());
    if let (Some(names), Value::String(name)) = (names(schema), value) {
        return match names.contains(&name.as_str()) {
            true => Ok(()),
            false => fail(unknown_name(key, value), suggest(name, &names)),
        };
    }
    if let (Some(form), Value::String(text)) = (schema["x-form"].as_str(), value) {
        let within = match form.strip_suffix(PAIR).unwrap_or(form) {
            "time" => within::<Span>(schema, text),
            "rate" => within::<Rate>(schema, text),
            "size" => within::<Bytes>(schema, text),
            _ => Ok(true),
        };
        return match within {
            Ok(true) => Ok(()),
            Ok(false) => out_of_range(),
            Err(error) => fail(error, String::new()),
        };
    }
    let fits = match schema["type"].as_str() {
        Some("string") if schema.get("x-form").is_some() => return Ok(()), // serde reports a missing unit
        Some("string") => value.is_string(),
        Some("number") => value.is_number(),
        Some("integer") => value.is_i64() || value.is_u64(),
        Some("boolean") => value.is_boolean(),
        Some("array") => value.is_array(),
        Some("object") => value.is_object(),
        _ => true,
    };
    if !fits {
        let (what, cure) = match value {
            Value::Null => ("not a finite number".to_owned(), default()),
            Value::Object(_) if holds_keys(&schema["items"]) => {
                ("a table".to_owned(), format!("write each entry as a table [[{key}]]"))
            }
            Value::Object(_) => ("a table".to_owned(), String::new()),
            _ if holds_keys(&schema["items"]) => {
                (cut(value), format!("write each entry as a table [[{key}]]"))
            }
            _ if holds_keys(schema) => (cut(value), as_table(schema, key, value)),
            Value::String(_) if !matches!(schema["type"].as_str(), Some("array" | "object")) => {
                (cut(value), "write it without quotation marks".to_owned())
            }
            other => (cut(other), default()),
        };
        return fail(format!("`{key}` is {what}, expected {}", form(schema)), cure);
    }
    let Some(number) = value.as_f64() else { return Ok(()) };
    let keeps = |keyword: &str, fits: fn(f64, f64) -> bool| {
        schema[keyword].as_f64().is_none_or(|limit| fits(number, limit))
    };
    let kept = keeps("minimum", |number, least| number >= least)
        && keeps("maximum", |number, most| number <= most)
        && keeps("exclusiveMinimum", |number, least| number > least)
        && keeps("exclusiveMaximum", |number, most| number < most);
    if kept { Ok(()) } else { out_of_range() }
}

fn cut(value: &Value) -> String {
    value.to_string().chars().take(40).collect()
}

/// Whether a text with a unit lies in the schema's `x-range`: `"1 ms..=1 s"`, `"1 ms.."` or `"..=1 s"`.
fn within<T: FromStr<Err: Display> + PartialOrd>(schema: &Value, text: &str) -> Result<bool, String> {
    let value: T = text.parse().map_err(|error: T::Err| error.to_string())?;
    let Some(range) = schema["x-range"].as_str() else { return Ok(true) };
    let (low, high) = range.split_once("..").expect("a range has two dots");
    let end = |text: &str| -> Option<T> {
        let text = text.trim_start_matches('=');
        (!text.is_empty()).then(|| text.parse().unwrap_or_else(|_| panic!("`{range}` has ends with units")))
    };
    Ok(end(low).is_none_or(|least| value >= least) && end(high).is_none_or(|most| value <= most))
}

pub(super) fn wrong(path: &[String], at_key: bool, cause: String, cure: String) -> Wrong {
    Wrong { path: path.to_vec(), at_key, cause, cure }
}
