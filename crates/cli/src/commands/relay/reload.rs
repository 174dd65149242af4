//! The effect of SIGHUP: keys with other values, and whether they need a restart.

use toml::{Table, Value};

/// Keys that need a restart, and why.
const FIXED: [(&str, &str); 8] = [
    ("keys", "the identity stays for the life of a relay"),
    ("listen", "the relay keeps its listening sockets"),
    ("measurement", "coordinators rely on one consent for the life of a relay"),
    ("nickname", "clients and measurements know the relay by it"),
    ("show-circuits", "the status page keeps its configuration"),
    ("status", "the status page keeps its listening socket"),
    ("system", "connections and circuits depend on these parts"),
    ("threads", "connections stay on their threads"),
];
/// Keys with values that the log hides.
const SECRET: [&str; 1] = ["directory.token"];

/// A key with another value.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Difference {
    /// The key, with its table.
    pub key: String,
    pub before: String,
    pub after: String,
    /// Why the key needs a restart, if it does.
    pub fixed: Option<&'static str>,
}

/// The keys with other values.
pub(super) fn differences(before: &Table, after: &Table) -> Vec<Difference> {
    let mut found = Vec::new();
    compare("", before, after, &mut found);
    found
}

/// The configuration in force after a reload: the new one, with the old values of keys that need a restart.
pub(super) fn in_force(before: &Table, mut after: Table) -> Table {
    for (key, _) in FIXED {
        after.remove(key);
        after.extend(before.get(key).map(|value| (key.to_owned(), value.clone())));
    }
    after
}

fn compare(place: &str, before: &Table, after: &Table, found: &mut Vec<Difference>) {
    let mut keys: Vec<&String> = before.keys().chain(after.keys()).collect();
    keys.sort_unstable();
    keys.dedup();
    let empty = Table::new();
    for key in keys {
        let (old, new) = (before.get(key), after.get(key));
        let path = format!("{place}{key}");
        match (old.and_then(Value::as_table), new.and_then(Value::as_table)) {
            (None, None) if old == new => {}
            (None, None) => {
                let shown = |value: Option<&Value>| match value {
                    Some(_) if SECRET.contains(&&*path) => "(secret)".to_owned(),
                    Some(value) => value.to_string(),
                    None => "default".to_owned(),
                };
                let top = path.split('.').next().unwrap_or_default();
                let fixed = FIXED.iter().find(|(fixed, _)| *fixed == top).map(|(_, why)| *why);
                found.push(Difference { before: shown(old), after: shown(new), key: path, fixed });
            }
            (old, new) => compare(&format!("{path}."), old.unwrap_or(&empty), new.unwrap_or(&empty), found),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys that change while a relay runs.
    const CHANGEABLE: [&str; 15] = [
        "address",
        "bandwidth",
        "contact",
        "directory",
        "dos",
        "drain",
        "exit-policy",
        "exit-to-private-addresses",
        "extend-to-private-addresses",
        "family",
        "family-keys",
        "key-lifetimes",
        "limits",
        "published-bandwidth",
        "tor",
    ];

    fn table(text: &str) -> Table {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn differences_name_keys_values_and_restarts() {
        let before =
            table("nickname = \"a\"\nbandwidth = \"1 Mbit/s\"\n[directory]\ntoken = \"x\"\n[dos]\nA = 1\n");
        let after = table(
            "nickname = \"b\"\nbandwidth = \"1 Mbit/s\"\n[directory]\ntoken = \"y\"\n[tor]\nauthority = \"z\"\n",
        );
        let found = differences(&before, &after);
        let shown: Vec<[&str; 3]> = found.iter().map(|one| [&*one.key, &*one.before, &*one.after]).collect();
        let wanted = [
            ["directory.token", "(secret)", "(secret)"],
            ["dos.A", "1", "default"],
            ["nickname", "\"a\"", "\"b\""],
            ["tor.authority", "default", "\"z\""],
        ];
        assert_eq!(shown, wanted);
        assert!(found.iter().all(|one| one.fixed.is_some() == (one.key == "nickname")));
        assert_eq!(differences(&before, &before), []);
        let kept = in_force(&before, after.clone());
        assert_eq!(kept["nickname"].as_str(), Some("a"));
        assert_eq!(differences(&kept, &after).len(), 1, "a key that needs a restart is named again");
    }

    /// The reader of configurations names all keys when it refuses one.
    #[test]
    fn every_key_is_changeable_or_fixed() {
        let refused = toml::from_str::<super::super::RelayFile>("x = 1").err().unwrap().to_string();
        let (_, list) = refused.split_once("expected one of ").unwrap();
        let mut keys: Vec<&str> = list.split('`').skip(1).step_by(2).collect();
        keys.sort_unstable();
        let mut known: Vec<&str> = CHANGEABLE.to_vec();
        known.extend(FIXED.map(|(key, _)| key));
        known.sort_unstable();
        assert_eq!(keys, known);
    }
}
