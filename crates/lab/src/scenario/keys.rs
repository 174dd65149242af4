//! The keys of a scenario file: schema for the check and for editors, and the reference page.

use std::fmt::Write as _;
use std::sync::LazyLock;

use serde_json::{Value, json};
use tidegate_control::keys::{self, Key};

use super::file::ScenarioFile;

/// Schema of a scenario after `[every-system]` and `[[combine]]` are expanded.
pub(super) static WHOLE: LazyLock<Value> = LazyLock::new(|| {
    let mut whole = keys::schema::<ScenarioFile>();
    let system = &mut whole["properties"]["system"]["items"]["properties"];
    for (key, schema) in tidegate_proto::system::SCHEMA["properties"].as_object().into_iter().flatten() {
        system[key] = schema.clone();
    }
    whole
});

/// The JSON Schema of a scenario file as a user writes it.
pub fn schema() -> Value {
    let mut schema = WHOLE.clone();
    let mut shared = schema["properties"]["system"]["items"].clone();
    shared["required"] = json!([]);
    shared["description"] = "Keys of every system that does not set them itself.".into();
    if let Some(keys) = shared["properties"].as_object_mut() {
        keys.remove("name");
    }
    schema["properties"]["combine"] = json!({
        "type": "array",
        "description": "Each table is one choice: named alternatives, each with keys of a system. Every combination becomes a \
            system, named after its alternatives.",
        "items": { "type": "object", "additionalProperties": shared },
    });
    schema["properties"]["every-system"] = shared;
    // `[[combine]]` can replace `[[system]]`.
    schema["required"] = json!(["duration", "user"]);
    schema["title"] = "Tidegate scenario".into();
    schema
}

/// All keys with the pattern in their path or description, ignoring case; an empty pattern finds all keys. The keys
/// of a system are listed under `system[]`. A path as `--set` takes it (`relay.guard.link`) finds its key.
pub fn find(pattern: &str) -> Vec<Key> {
    let pattern = pattern.to_lowercase();
    let holds = |text: &str| text.to_lowercase().contains(&pattern);
    let mut all = keys::list(&WHOLE);
    all.retain(|key| holds(&key.path) || holds(&key.about) || is_set_path(&key.path, &pattern));
    all
}

/// Whether a path of `--set` leads to a key: it has the name of a table for `[]` and for `<name>`.
fn is_set_path(key: &str, path: &str) -> bool {
    let key = key.replace("[]", ".<name>");
    let (parts, names) = (key.split('.'), path.split('.'));
    parts.clone().count() == names.clone().count()
        && parts.zip(names).all(|(part, name)| part == "<name>" || part == name)
}

/// What to write instead of a statement of `--set` that is not TOML: the same text in quotation marks if the key takes
/// it, otherwise a value of the key's type. `None` for an unknown key.
pub(super) fn example(statement: &str) -> Option<String> {
    let (path, given) = statement.split_once('=')?;
    let schema = at(path.trim())?;
    let quoted = Value::from(given.trim().trim_matches(['"', '\'']));
    let fits = quoted != "" && keys::check(schema, &quoted).is_ok();
    let value = if fits { quoted.to_string() } else { keys::example(schema)? };
    Some(format!("{} = {value}", path.trim()))
}

/// The schema of the key at a path of `--set`.
fn at(path: &str) -> Option<&'static Value> {
    let path = match path.strip_prefix("every-system.") {
        Some(rest) => format!("system.NAME.{rest}"),
        None => path.to_owned(),
    };
    path.split('.').try_fold(&*WHOLE, |schema, step| {
        let named = [&schema["additionalProperties"], &schema["items"]];
        schema["properties"].get(step).or_else(|| named.into_iter().find(|inner| inner.is_object()))
    })
}

/// The path of a key in `--set`.
pub fn set_path(key: &str) -> String {
    key.replace("[]", ".NAME").replace("<name>", "NAME")
}

/// The reference page.
pub fn page() -> String {
    let mut page = String::from(INTRODUCTION);
    let all = keys::list(&WHOLE);
    let tables = [("", "A scenario.")].into_iter();
    let tables =
        tables.chain(all.iter().filter(|key| key.table).map(|key| (key.path.as_str(), key.about.as_str())));
    for (table, about) in tables {
        let inside = |key: &&Key| key.path.rsplit_once('.').map_or("", |(table, _)| table) == table;
        let heading = match (table, table.strip_suffix("[]")) {
            ("", _) => "Top level".to_owned(),
            (_, Some(list)) => format!("`[[{}]]`", list.replace("[]", "")),
            (one, None) => format!("`[{}]`", one.replace("[]", "")),
        };
        writeln!(page, "\n## {heading}\n\n{about}\n\n{HEAD}").expect("writing to a string cannot fail");
        for key in all.iter().filter(inside).filter(|key| !key.table) {
            writeln!(page, "{}", row(key)).expect("writing to a string cannot fail");
        }
    }
    page
}

const INTRODUCTION: &str = "\
# Keys of a scenario file

This page is the reference of all keys of a scenario file, which is TOML. Quantities are strings with a unit:
`\"20 ms\"`, `\"10 Mbit/s\"`, `\"320 KiB\"`. Keys marked `required` must be given, all others are optional.
`tidegate keys PATTERN` prints the same descriptions on the terminal.

The table `x` of `[[system]]` holds the parameters of the part called `x`, which apply if the system uses that part.
`[every-system]` has the keys of `[[system]]` and sets them for every system that does not set them itself. Each
`[[combine]]` names alternatives, each with keys of a system, and every combination becomes a system.

**In an editor.** `tidegate keys --schema > scenario.schema.json` writes the JSON Schema. With Taplo (or Even Better TOML
in VS Code), add `#:schema scenario.schema.json` as the first line of a scenario: the editor then completes keys, shows
their descriptions and marks mistakes.

`tidegate keys --markdown` generates this page from the types that read the file; a test compares the two.
";

const HEAD: &str = "| key | what it is | takes | default | range | source |\n|---|---|---|---|---|---|";

fn row(key: &Key) -> String {
    let name = key.path.rsplit('.').next().unwrap_or_default();
    let default = match &key.default {
        Some(default) => format!("`{default}`"),
        None if key.required => "required".into(),
        None => String::new(),
    };
    let cell = |text: &str| text.replace('|', "\\|");
    format!(
        "| `{name}` | {} | {} | {} | {} | {} |",
        cell(&key.about),
        cell(&key.form),
        cell(&default),
        cell(&key.range),
        cell(&key.source)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_is_true() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/scenario.md");
        let written = std::fs::read_to_string(path).unwrap();
        assert_eq!(written, page(), "regenerate it: tidegate keys --markdown > docs/scenario.md");
    }

    #[test]
    fn examples_fit_the_type_of_the_key() {
        for (statement, wanted) in [
            ("user.web.count=a", Some("user.web.count = 1")),
            ("system.x.scheduler=ewma", Some("system.x.scheduler = \"ewma\"")),
            ("duration = 30 s", Some("duration = \"30 s\"")),
            ("duration = 30", Some("duration = \"20 ms\"")),
            ("every-system.kist.interval=5 ms", Some("every-system.kist.interval = \"5 ms\"")),
            ("user.web.own-server=yes", Some("user.web.own-server = false")),
            ("traffic.page.pause=1 s", Some("traffic.page.pause = \"1 s\"")),
            ("tor.fraction=tenth", Some("tor.fraction = 0.02")),
            ("user.web=5", None),
            ("nonsense=a", None),
        ] {
            assert_eq!(example(statement).as_deref(), wanted, "{statement}");
        }
    }

    #[test]
    fn every_key_has_a_description() {
        for key in find("") {
            assert!(key.about.len() > 4, "{} has no description", key.path);
            assert!(!key.path.contains('_'), "{} is not in kebab case", key.path);
        }
    }

    #[test]
    fn a_pattern_finds_names_and_meanings() {
        let paths = |pattern| find(pattern).into_iter().map(|key| key.path).collect::<Vec<_>>();
        assert!(paths("rto").contains(&"system[].tcp.rto-min".to_owned()));
        assert!(paths("standard deviation").contains(&"underlay.jitter".to_owned()));
        assert_eq!(paths("relay.guard.link"), ["relay[].link"]);
        assert_eq!(paths("system.vanilla.tcp.rto-min"), ["system[].tcp.rto-min"]);
        assert_eq!(paths("traffic.web.every"), ["traffic.<name>.every"]);
        assert!(paths("no such thing").is_empty());
        assert_eq!(paths("").len(), keys::list(&WHOLE).len());
    }

    #[test]
    fn the_schema_describes_combinations_and_common_keys() {
        let schema = schema();
        let alternative = &schema["properties"]["combine"]["items"]["additionalProperties"];
        assert!(alternative["properties"].get("transport").is_some());
        assert!(schema["properties"]["every-system"]["properties"].get("name").is_none());
    }
}
