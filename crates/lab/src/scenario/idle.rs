//! Keys without effect, because something else in the file leaves them nothing to do: they are refused. Their defaults are
//! accepted, because a scenario that the tool wrote has every default.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde_json::{Value, json};
use tidegate_control::balance::{BALANCES, Trick};
use tidegate_control::keys::Wrong;

use super::file::{ScenarioFile, SystemFile};

/// Why a key of a system has no effect.
struct Reason {
    /// What it has no effect with, and why.
    with: String,
    /// What to do.
    cure: String,
}

/// Keys of a system that have no effect in some systems.
struct Rule {
    keys: &'static [&'static str],
    /// The reason, if the keys have no effect in this system.
    idle: fn(&SystemFile) -> Option<Reason>,
}

const RULES: &[Rule] = &[
    Rule { keys: &["attack.trick"], idle: trick },
    Rule { keys: &["attack.factor"], idle: factor },
    Rule { keys: &["attack.serves"], idle: serves },
    Rule { keys: &["survey.trusted"], idle: trusted },
    Rule { keys: &["survey.duration"], idle: duration },
    Rule { keys: &["survey.users", "survey.files"], idle: no_survey },
];

/// The keys of a system that sets only its name.
static USUAL: LazyLock<Value> = LazyLock::new(|| {
    let usual: SystemFile = toml::from_str("name = \"x\"").expect("all other keys have defaults");
    serde_json::to_value(usual).expect("systems can be written")
});

/// Checks the keys of a file; `document` is the file as written, with its systems expanded.
pub(super) fn check(file: &ScenarioFile, document: &Value) -> Result<(), Wrong> {
    check_systems(file, document)
}

/// Refuses a key of systems that has no effect in any of them. A key of `[every-system]` may be for only some.
fn check_systems(file: &ScenarioFile, document: &Value) -> Result<(), Wrong> {
    let tables = file.system.iter().map(|system| serde_json::to_value(system.get_ref()));
    let tables: Vec<Value> = tables.map(|table| table.expect("systems can be written")).collect();
    for (rule, key) in RULES.iter().flat_map(|rule| rule.keys.iter().map(move |key| (rule, *key))) {
        let pointer = format!("/{}", key.replace('.', "/"));
        let given = file.system.iter().zip(&tables).filter_map(|(system, table)| {
            let value = table.pointer(&pointer)?;
            let is_given = Some(value) != USUAL.pointer(&pointer) && !is_elsewhere(system, key);
            is_given.then_some((system, value))
        });
        let idle: Option<Vec<_>> =
            given.map(|(system, value)| Some((system, value, (rule.idle)(system)?))).collect();
        let Some((system, value, Reason { with, cure })) = idle.and_then(|idle| idle.into_iter().next())
        else {
            continue;
        };
        let name = system.name.get_ref();
        let systems = document["system"].as_array().into_iter().flatten();
        let number = systems.map(|table| &table["name"]).position(|other| other == name).unwrap_or(0);
        let number = number.to_string();
        let path = ["system", &number].into_iter().chain(key.split('.'));
        return Err(Wrong {
            path: path.map(str::to_owned).collect(),
            at_key: false,
            cause: format!("system `{name}`: `{key}` = {value} has no effect with {with}"),
            cure,
        });
    }
    Ok(())
}

/// Whether another rule is about this key of this system.
fn is_elsewhere(system: &SystemFile, key: &str) -> bool {
    // Only a notice names the tables of parts that a system does not choose: `SystemConfig::idle`.
    (key.starts_with("attack.") || key.starts_with("survey.")) && system.parts.balance.is_given()
}

/// The balance systems, written like `"torflow"`, that meet a condition.
fn balances(with: impl Fn(&tidegate_control::balance::Asks) -> bool) -> String {
    let made =
        BALANCES.iter().map(|part| (part.name, (part.make)(&json!({})).expect("defaults are right").0));
    let names = made.filter(|(_, balance)| !balance.is_given() && with(&balance.asks()));
    names.map(|(name, _)| format!("\"{name}\"")).collect::<Vec<_>>().join(", ")
}

fn balance(system: &SystemFile) -> String {
    format!("`balance = {}`", system.parts.table["balance"])
}

fn trick(system: &SystemFile) -> Option<Reason> {
    let trick = system.parts.attack.trick;
    let why = match trick {
        _ if system.parts.balance.asks().meets(trick) => return None,
        Trick::Frame => "which does not read relays' reports of each other",
        Trick::Hold | Trick::Flood => "which does not measure relays under full load",
        Trick::None | Trick::Inflate | Trick::Refuse | Trick::Sybils => "which does not survey the network",
    };
    let met = balances(|asks| asks.meets(trick));
    Some(Reason {
        with: format!("{}, {why}", balance(system)),
        cure: format!("use another trick, or a balance that this one reaches: {met}"),
    })
}

fn factor(system: &SystemFile) -> Option<Reason> {
    let idle = !system.parts.attack.trick.has_factor();
    idle.then(|| of_trick(system, "remove `factor`, or use a trick that has one, such as \"inflate\""))
}

fn serves(system: &SystemFile) -> Option<Reason> {
    let idle = system.parts.attack.trick != Trick::Refuse;
    idle.then(|| of_trick(system, "remove `serves`, or use trick = \"refuse\""))
}

fn of_trick(system: &SystemFile, cure: &str) -> Reason {
    let trick = &system.parts.table["attack"]["trick"];
    Reason { with: format!("`attack.trick = {trick}`"), cure: cure.into() }
}

fn trusted(system: &SystemFile) -> Option<Reason> {
    let idle = !system.parts.balance.asks().trusted;
    idle.then(|| Reason {
        with: format!("{}, which does not ask whom to trust", balance(system)),
        cure: format!("remove `trusted`, or use balance = {}", balances(|asks| asks.trusted)),
    })
}

fn duration(system: &SystemFile) -> Option<Reason> {
    let asks = system.parts.balance.asks();
    asks.measurements.map_or_else(
        || no_survey(system),
        |_| {
            Some(Reason {
                with: format!("{}, whose rounds last as long as the measurements", balance(system)),
                cure: "remove `duration`, or change `flashflow.seconds`".into(),
            })
        },
    )
}

fn no_survey(system: &SystemFile) -> Option<Reason> {
    (system.parts.balance.asks().rounds == 0).then(|| Reason {
        with: format!("{}, which does not survey the network", balance(system)),
        cure: "remove it, or use another balance".into(),
    })
}

/// A line for each attack that does not reach some of the systems that have it; [`check`] refuses one that reaches none.
pub(super) fn unreached(file: &ScenarioFile) -> Vec<String> {
    let mut by_trick: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for system in file.system.iter().filter(|system| !system.parts.balance.is_given()) {
        if trick(system).is_some() {
            let name = format!("`{}`", system.name.get_ref());
            by_trick.entry(system.parts.table["attack"]["trick"].to_string()).or_default().push(name);
        }
    }
    let line = |(trick, names): (String, Vec<String>)| {
        format!("`attack.trick` = {trick} does not reach {}: their relays are honest", names.join(", "))
    };
    by_trick.into_iter().map(line).collect()
}
