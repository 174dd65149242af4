//! The JSON Schema of a type, and the list of its keys.

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::Value;

/// The end of the form of a value that may be given as a list of two, to draw from between them.
pub const PAIR: &str = ", or [lowest, highest]";

/// One key of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// The key's path: `system[].kist.interval`; `[]` is each table of a list, `<name>` a name that the user chooses.
    pub path: String,
    /// Description of the key.
    pub about: String,
    /// Source of the key, its default or its range; may be empty.
    pub source: String,
    /// Type of the value, with its unit.
    pub form: String,
    /// Allowed range; empty if the type says all.
    pub range: String,
    /// Default value, if there is one.
    pub default: Option<String>,
    /// Whether the key is required.
    pub required: bool,
    /// Whether the value is a table or a list of tables.
    pub table: bool,
}

/// The JSON Schema (draft 7) of what a type reads, in one piece, without references.
pub fn schema<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft07().with(|settings| settings.inline_subschemas = true);
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    tidy(&mut schema);
    schema
}

/// Removes `null` from types (TOML does not have it) and joins descriptions to one line.
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

/// Lists all keys of a schema in alphabetical order, each table before its keys.
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
pub(super) fn holds_keys(schema: &Value) -> bool {
    schema.get("properties").is_some() || schema["additionalProperties"].is_object()
}

/// The type of a schema's values, in words.
pub(super) fn form(schema: &Value) -> String {
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

/// The names that a schema allows, if it is an enumeration.
pub(super) fn names(schema: &Value) -> Option<Vec<&str>> {
    if let Some(list) = schema["enum"].as_array() {
        return list.iter().map(Value::as_str).collect();
    }
    // schemars writes variants without a comment as one `enum`, and each other variant as a `const`.
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

/// A value that a schema allows, as TOML; `None` for tables.
pub fn example(schema: &Value) -> Option<String> {
    let given = schema.get("default").or_else(|| schema["examples"].get(0)).map(Value::to_string);
    let name = || names(schema)?.first().map(|name| format!("\"{name}\""));
    let least = || ["minimum", "exclusiveMinimum"].iter().find_map(|keyword| schema[*keyword].as_u64());
    given.filter(|text| !text.starts_with('{') && text != "[]").or_else(name).or_else(|| match schema["type"]
        .as_str()?
    {
        "integer" => Some(least().unwrap_or(0).max(1).to_string()),
        "number" => Some("0.5".into()),
        "boolean" => Some("true".into()),
        "string" => Some("\"NAME\"".into()),
        _ => None,
    })
}

/// The range of a schema's values, in words.
pub(super) fn permitted(schema: &Value) -> Option<String> {
    let range = range(schema)?;
    let (low, high) = range.split_once("..").expect("a range has two dots");
    let (above, most) = (low.strip_prefix('>'), high.strip_prefix('='));
    Some(match (low, above, high, most) {
        ("", _, _, Some(most)) => format!("at most {most}"),
        ("", _, high, None) => format!("below {high}"),
        (low, None, "", _) => format!("at least {low}"),
        (_, Some(above), "", _) => format!("above {above}"),
        (low, None, _, Some(most)) => format!("{low} to {most}"),
        (low, None, high, None) => format!("at least {low} and below {high}"),
        (_, Some(above), _, Some(most)) => format!("above {above} and at most {most}"),
        (_, Some(above), high, None) => format!("above {above} and below {high}"),
    })
}

/// The values that a schema allows, as a range of Rust.
pub(super) fn range(schema: &Value) -> Option<String> {
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
