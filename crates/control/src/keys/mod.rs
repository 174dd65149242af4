//! The keys of a file, described once by the serde type that reads it.
//!
//! A type that derives [`JsonSchema`] describes each field: the doc comment (which may end with `Source: ...`), the unit (the
//! field's type), the default (serde's) and the range. The range is `#[schemars(range(min = 0.0, max = 1.0))]`, or
//! `#[schemars(extend("x-range" = "1 ms..=1 s"))]` for values with units. The schema is the source of the check of a file
//! before serde reads it ([`check`]), of the reference of all keys ([`list`]), and of the schema for editors.
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

mod check;
mod list;
mod read;
mod suggest;

pub use check::{Wrong, check};
pub use list::{Key, PAIR, example, list, schema};
pub use read::{Parameters, read};
pub use suggest::suggest;

#[cfg(test)]
mod tests {
    use schemars::JsonSchema;
    use serde::{Deserialize, Serialize};
    use serde_json::{Value, json};

    use super::suggest::edits;
    use super::*;
    use crate::units::Span;

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
    fn mistakes_are_reported_with_their_place() {
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
        assert_eq!(cure(json!({ "part-of": 2 })), "permitted: at least 0 and below 1; the default is 0.5");
        assert_eq!(cure(json!({ "wait": "2 s" })), "permitted: 1 ms to 1 s");
    }

    #[derive(Serialize, Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields, default)]
    struct Whole {
        order: Order,
        other: Other,
        #[schemars(extend("x-length" = "two ends"))]
        ends: [u32; 2],
        inner: Inner,
        more: Vec<Inner>,
    }

    #[derive(Clone, Copy, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "kebab-case")]
    enum Other {
        None,
        Strict,
    }

    impl Default for Whole {
        fn default() -> Whole {
            let inner = || Inner { count: 1 };
            Whole { order: Order::Random, other: Other::None, ends: [1, 2], inner: inner(), more: Vec::new() }
        }
    }

    #[test]
    fn cures_say_what_to_write() {
        let schema = schema::<Whole>();
        for (file, cause, cure) in [
            (
                json!({ "order": "strict" }),
                "there is no order `strict`",
                "`strict` is a `other`: write `other = \"strict\"`",
            ),
            (json!({ "order": "none" }), "there is no order `none`", "known here: random, round-robin"),
            (json!({ "ends": [1] }), "`ends` has 1 value, expected list of 2: whole number", "two ends"),
            (json!({ "inner": 3 }), "`inner` is 3, expected table", "write it like `inner = { count = 3 }`"),
            (
                json!({ "inner": "x" }),
                "`inner` is \"x\", expected table",
                "write it like `inner = { count = 1 }`",
            ),
            (json!({ "more": { "count": 1 } }), "`more` is a table, expected tables", MORE),
            (json!({ "more": 1 }), "`more` is 1, expected tables", MORE),
        ] {
            let wrong = check(&schema, &file).unwrap_err();
            assert_eq!((wrong.cause.as_str(), wrong.cure.as_str()), (cause, cure), "{file}");
        }
    }

    const MORE: &str = "write each entry as a table [[more]]";

    #[test]
    fn suggestions_are_near_or_list_all() {
        assert_eq!(suggest("duratoin", &["name", "duration"]), "did you mean `duration`?");
        assert_eq!(suggest("xyzzy", &["name", "duration"]), "known here: name, duration");
        assert_eq!(suggest("x", &["g", "m", "exit"]), "known here: g, m, exit");
        assert_eq!(suggest("r9", &["r1", "g"]), "did you mean `r1`?");
        assert_eq!(suggest("x", &[]), "");
        assert_eq!(edits("kitten", "sitting"), 3);
    }
}
