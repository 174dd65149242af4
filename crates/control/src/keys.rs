//! The keys of a file, described once: by the serde type that reads it.
//!
//! A type that derives [`JsonSchema`] says what each of its fields is (the doc comment, whose end may be
//! `Source: ...`), in which unit (the field's type), what it is by default (serde's default) and what it may be:
//! `#[schemars(range(min = 0.0, max = 1.0))]`, or `#[schemars(extend("x-range" = "1 ms..=1 s"))]` where values have
//! units. From that schema come the check of a file before serde reads it ([`check`]), the reference of all keys
//! ([`list`]), and the schema that editors read.
//!
//! ```
//! use schemars::JsonSchema;
//! use serde::{Deserialize, Serialize};
//! use tidegate_control::keys;
//! use tidegate_control::units::Span;
//!
//! #[derive(Serialize, Deserialize, JsonSchema)]
//! #[serde(deny_unknown_fields, default)]
//! struct Kist {
//!     /// Time between two runs. Source: tor's `KISTSchedRunInterval`.
//!     #[schemars(extend("x-range" = "1 ms..=1 s"))]
//!     interval: Span,
//! }
//! impl Default for Kist {
//!     fn default() -> Kist {
//!         Kist { interval: Span::from_millis(10) }
//!     }
//! }
//!
//! let schema = keys::schema::<Kist>();
//! let key = &keys::list(&schema)[0];
//! assert_eq!((key.default.as_deref(), &*key.range), (Some("\"10 ms\""), "1 ms..=1 s"));
//! let wrong = keys::check(&schema, &serde_json::json!({ "interval": "2 s" })).unwrap_err();
//! assert_eq!((wrong.cause.as_str(), wrong.path), ("`interval` is not in 1 ms..=1 s", vec!["interval".to_owned()]));
//! ```

use std::fmt::Display;
use std::str::FromStr;

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::units::{Bytes, Rate, Span};

/// The end of the form of a value that may be given as a list of two, to draw from between them.
pub const PAIR: &str = ", or [lowest, highest]";

/// One key of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// Where it stands: `system[].kist.interval`; `[]` is each table of a list, `<name>` a name of one's own.
    pub path: String,
    /// What it is.
    pub about: String,
    /// Where it, its default or its range comes from; may be empty.
    pub source: String,
    /// What kind of value it takes, with its unit.
    pub form: String,
    /// The values it may have; empty where its form says all.
    pub range: String,
    /// What it is if the file does not say; none if then there is nothing.
    pub default: Option<String>,
    /// The file must say.
    pub required: bool,
    /// It is a table, or a list of tables, with keys of its own.
    pub table: bool,
}

/// What is wrong with a file, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// Keys, and numbers of list items, from the root to the place.
    pub path: Vec<String>,
    /// The place is the key, not its value.
    pub at_key: bool,
    /// What is wrong.
    pub cause: String,
    /// What would help; may be empty.
    pub cure: String,
}

impl Wrong {
    /// The same in a table that holds this one under a key.
    pub fn below(mut self, key: &str) -> Wrong {
        self.path.insert(0, key.to_owned());
        self
    }
}

/// The JSON Schema (draft 7) of what a type reads, in one piece, without references.
pub fn schema<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft07().with(|settings| settings.inline_subschemas = true);
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    tidy(&mut schema);
    schema
}

/// TOML has no null: an optional key is one that is not there. And a description is one line.
fn tidy(schema: &mut Value) {
    let Value::Object(map) = schema else { return };
    if let Some(Value::Array(types)) = map.get_mut("type") {
        types.retain(|name| name != "null");
        if let [only] = &types[..] {
            let only = only.clone();
            map.insert("type".into(), only);
        }
    }
    if map.get("default") == Some(&Value::Null) {
        map.remove("default");
    }
    if let Some(Value::Array(options)) = map.get_mut("anyOf") {
        options.retain(|option| option["type"] != "null");
        if options.len() == 1
            && let Value::Object(only) = options.remove(0)
        {
            map.remove("anyOf");
            only.into_iter().for_each(|(keyword, value)| _ = map.entry(keyword).or_insert(value));
        }
    }
    if let Some(Value::String(text)) = map.get_mut("description") {
        *text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    }
    map.remove("format");
    for inner in map.values_mut() {
        match inner {
            Value::Array(list) => list.iter_mut().for_each(tidy),
            other => tidy(other),
        }
    }
}

/// The parameters of a part: a table of a file.
pub trait Parameters: Default + Serialize + DeserializeOwned + JsonSchema {
    /// What keys are that the table does not give, where that depends on one that it gives.
    fn base(_given: &Value) -> Self {
        Self::default()
    }

    /// What is wrong with values that are each in their range, and what would help.
    fn mistake(&self) -> Option<(&'static str, &'static str)> {
        None
    }
}

/// Reads the parameters of a part from its table, in which any key may be missing.
///
/// # Errors
/// The first thing that is wrong.
pub fn read<P: Parameters>(table: &Value) -> Result<P, Wrong> {
    check(&schema::<P>(), table)?;
    let whole = |cause: String, cure: &str| wrong(&[], false, cause, cure.to_owned());
    let mut all = serde_json::to_value(P::base(table)).map_err(|error| whole(error.to_string(), ""))?;
    if let (Value::Object(all), Value::Object(given)) = (&mut all, table) {
        all.extend(given.clone());
    }
    let parameters: P = serde_json::from_value(all).map_err(|error| whole(error.to_string(), ""))?;
    match parameters.mistake() {
        Some((cause, cure)) => Err(whole(cause.to_owned(), cure)),
        None => Ok(parameters),
    }
}

/// All keys that a schema describes, tables before what they hold, else in alphabetical order.
pub fn list(schema: &Value) -> Vec<Key> {
    let mut keys = Vec::new();
    walk(schema, "", &mut keys);
    keys
}

fn walk(schema: &Value, prefix: &str, keys: &mut Vec<Key>) {
    let join = |name: &str| if prefix.is_empty() { name.to_owned() } else { format!("{prefix}.{name}") };
    for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
        let is_required = |list: &Vec<Value>| list.iter().any(|known| known == name);
        add(inner, join(name), schema["required"].as_array().is_some_and(is_required), keys);
    }
    if schema["additionalProperties"].is_object() {
        add(&schema["additionalProperties"], join("<name>"), false, keys);
    }
}

fn add(schema: &Value, path: String, required: bool, keys: &mut Vec<Key>) {
    let (path, inner) = match &schema["items"] {
        items if holds_keys(items) => (path + "[]", items),
        _ => (path, schema),
    };
    let description = [schema, inner].iter().find_map(|schema| schema["description"].as_str()).unwrap_or("");
    let (about, source) = description.split_once("Source: ").unwrap_or((description, ""));
    let default = schema.get("default").map(Value::to_string);
    keys.push(Key {
        path: path.clone(),
        about: about.trim_end().to_owned(),
        source: source.trim_end_matches('.').to_owned(),
        form: form(schema),
        range: range(schema).unwrap_or_default(),
        default: default.filter(|text| !holds_keys(inner) && text != "\"\"" && text != "[]"),
        required,
        table: holds_keys(inner),
    });
    walk(inner, &path, keys);
}

/// Whether a value of this schema is a table.
fn holds_keys(schema: &Value) -> bool {
    schema.get("properties").is_some() || schema["additionalProperties"].is_object()
}

/// What kind of value a schema takes, in words.
fn form(schema: &Value) -> String {
    if let Some(names) = names(schema) {
        return names.iter().map(|name| format!("`\"{name}\"`")).collect::<Vec<_>>().join(", ");
    }
    if let Some(form) = schema["x-form"].as_str() {
        return form.to_owned();
    }
    match schema["type"].as_str() {
        Some("integer") => "whole number".into(),
        Some("boolean") => "`true`, `false`".into(),
        Some("string") => "text".into(),
        Some("array") if holds_keys(&schema["items"]) => "tables".into(),
        Some("array") => match (schema["minItems"].as_u64(), schema["items"].is_array()) {
            (Some(count), false) => format!("list of {count}: {}", form(&schema["items"])),
            (_, true) => format!("list of {}", schema["items"].as_array().map_or(0, Vec::len)),
            _ => format!("list: {}", form(&schema["items"])),
        },
        Some("object") => "table".into(),
        Some(other) => other.into(),
        None => "any".into(),
    }
}

/// The names that a schema knows, if it knows names.
fn names(schema: &Value) -> Option<Vec<&str>> {
    if let Some(list) = schema["enum"].as_array() {
        return list.iter().map(Value::as_str).collect();
    }
    // schemars gives variants without a comment as one `enum`, the others each as a `const`.
    let options = schema["oneOf"].as_array()?;
    let mut all = Vec::new();
    for option in options {
        match (option["const"].as_str(), option["enum"].as_array()) {
            (Some(name), _) => all.push(name),
            (None, Some(list)) => all.extend(list.iter().filter_map(Value::as_str)),
            _ => return None,
        }
    }
    Some(all)
}

/// The values that a schema allows, in words.
fn range(schema: &Value) -> Option<String> {
    if let Some(range) = schema["x-range"].as_str() {
        return Some(range.to_owned());
    }
    let number = |keyword: &str| schema[keyword].as_f64();
    let text = |value: f64| {
        if value.abs() >= 1e-4 || value == 0.0 { value.to_string() } else { format!("{value:e}") }
    };
    let low =
        number("minimum").map(text).or(number("exclusiveMinimum").map(|above| format!(">{}", text(above))));
    let most = number("maximum").map(|most| format!("={}", text(most)));
    let high = most.or(number("exclusiveMaximum").map(text));
    (low.is_some() || high.is_some())
        .then(|| format!("{}..{}", low.unwrap_or_default(), high.unwrap_or_default()))
}

/// Looks at a file as it was written, before serde reads it: unknown and missing keys, kinds of values, names,
/// units and ranges. Texts of a form of their own (a queue, a buffer) are left to serde.
///
/// # Errors
/// The first thing that is wrong.
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
                    Some(known) => look(known, inner, path)?,
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
            for (number, inner) in list.iter().enumerate() {
                path.push(number.to_string());
                let items = &schema["items"];
                look(items.get(number).unwrap_or(items), inner, path)?;
                path.pop();
            }
            Ok(())
        }
        // A range to draw from: each end is what one value would be.
        Value::Array(list) if schema["x-form"].as_str().is_some_and(|form| form.ends_with(PAIR)) => {
            list.iter().try_for_each(|end| one(schema, end, path))
        }
        _ => one(schema, value, path),
    }
}

fn one(schema: &Value, value: &Value, path: &[String]) -> Result<(), Wrong> {
    let key =
        path.iter().rev().find(|step| step.parse::<usize>().is_err()).map_or("the file", String::as_str);
    let fail = |cause: String, cure: String| Err(wrong(path, false, cause, cure));
    let default = || match schema.get("default") {
        Some(default) => format!("the default is {default}"),
        None => form(schema),
    };
    let out_of_range = || fail(format!("`{key}` is not in {}", range(schema).unwrap_or_default()), default());
    if let (Some(names), Value::String(name)) = (names(schema), value) {
        return match names.contains(&name.as_str()) {
            true => Ok(()),
            false => fail(format!("there is no {} `{name}`", key.replace('-', " ")), suggest(name, &names)),
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
        Some("string") if schema.get("x-form").is_some() => return Ok(()), // serde says what the number lacks
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
            Value::Object(_) => ("a table".to_owned(), String::new()),
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

fn wrong(path: &[String], at_key: bool, cause: String, cure: String) -> Wrong {
    Wrong { path: path.to_vec(), at_key, cause, cure }
}

/// "did you mean ...", or the whole list where nothing is near.
pub fn suggest(name: &str, known: &[&str]) -> String {
    let nearest = known.iter().min_by_key(|candidate| edits(name, candidate));
    match nearest {
        Some(near) if edits(name, near) <= 1 + name.chars().count().min(near.chars().count()) / 3 => {
            format!("did you mean `{near}`?")
        }
        Some(_) => format!("known here: {}", known.join(", ")),
        None => String::new(),
    }
}

/// Levenshtein distance; long names are cut, so that noise costs little.
fn edits(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().take(64).collect(), b.chars().take(64).collect());
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use schemars::JsonSchema;
    use serde::{Deserialize, Serialize};
    use serde_json::json;

    use super::*;

    #[derive(Serialize, Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
    struct Table {
        /// A share. Source: nowhere.
        #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0))]
        part_of: f64,
        #[schemars(extend("x-range" = "1 ms..=1 s"))]
        wait: Option<Span>,
        order: Order,
        more: Vec<Inner>,
    }

    #[derive(Clone, Copy, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "kebab-case")]
    enum Order {
        /// In turn.
        RoundRobin,
        Random,
    }

    #[derive(Serialize, Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields)]
    struct Inner {
        count: u32,
    }

    impl Default for Table {
        fn default() -> Table {
            Table { part_of: 0.5, wait: None, order: Order::RoundRobin, more: Vec::new() }
        }
    }

    #[test]
    fn a_type_lists_its_keys() {
        let keys = list(&schema::<Table>());
        let paths: Vec<&str> = keys.iter().map(|key| key.path.as_str()).collect();
        assert_eq!(paths, ["more[]", "more[].count", "order", "part-of", "wait"]);
        assert_eq!((&*keys[3].about, &*keys[3].source, &*keys[3].range), ("A share.", "nowhere", "0..1"));
        assert_eq!(keys[3].default.as_deref(), Some("0.5"));
        assert_eq!((&*keys[4].form, &*keys[4].range, &keys[4].default), ("time", "1 ms..=1 s", &None));
        assert!(keys[1].required && !keys[4].required && keys[0].table);
        assert_eq!(keys[2].form, "`\"random\"`, `\"round-robin\"`");
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        let schema = schema::<Table>();
        assert_eq!(
            check(
                &schema,
                &json!({ "part-of": 0, "wait": "1 s", "order": "random", "more": [{ "count": 1 }] })
            ),
            Ok(())
        );
        for (file, path, cause) in [
            (json!({ "part-of": 1.0 }), "part-of", "`part-of` is not in 0..1"),
            (json!({ "part-of": "0.1" }), "part-of", "`part-of` is \"0.1\", expected number"),
            (json!({ "part-of": null }), "part-of", "`part-of` is not a finite number, expected number"),
            (json!({ "wait": "2 s" }), "wait", "`wait` is not in 1 ms..=1 s"),
            (json!({ "wait": "2" }), "wait", "`2` has no unit; write it like \"20 ms\""),
            (json!({ "order": "rnadom" }), "order", "there is no order `rnadom`"),
            (json!({ "more": [{ "count": 1 }, {}] }), "more.1", "`count` is missing"),
            (json!({ "more": [{ "count": 1.5 }] }), "more.0.count", "`count` is 1.5, expected whole number"),
            (json!({ "part_of": 0.1 }), "part_of", "unknown key `part_of`"),
        ] {
            let wrong = check(&schema, &file).unwrap_err();
            assert_eq!((wrong.path.join(".").as_str(), wrong.cause.as_str()), (path, cause));
        }
        let cure = |file: Value| check(&schema, &file).unwrap_err().cure;
        assert_eq!(cure(json!({ "part_of": 0.1 })), "did you mean `part-of`?");
        assert_eq!(cure(json!({ "xyzzy": 0.1 })), "known here: more, order, part-of, wait");
        assert_eq!(cure(json!({ "part-of": 2 })), "the default is 0.5");
    }

    #[test]
    fn suggestions_are_near_or_list_all() {
        assert_eq!(suggest("duratoin", &["name", "duration"]), "did you mean `duration`?");
        assert_eq!(suggest("xyzzy", &["name", "duration"]), "known here: name, duration");
        assert_eq!(edits("kitten", "sitting"), 3);
    }
}
