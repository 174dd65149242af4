//! Registries: lists of parts that experiments choose by name.
//!
//! A family of parts (schedulers, controllers, path policies, ...) is one constant: a slice of [`Entry`], one line per
//! part. Error messages, command-line help, the key reference and the JSON Schema all read this slice, so a new part is
//! its own file and one line. A part with parameters is the type that holds them; the table with the part's name sets
//! them.
//!
//! ```
//! use schemars::JsonSchema;
//! use serde::{Deserialize, Serialize};
//! use tidegate_control::keys::Parameters;
//! use tidegate_control::part;
//! use tidegate_control::registry::{Part, find, names};
//!
//! trait Shape: Send + Sync {
//!     fn area(&self) -> f64;
//! }
//!
//! #[derive(Default, Serialize, Deserialize, JsonSchema)]
//! #[serde(default, deny_unknown_fields)]
//! struct Square {
//!     /// Length of a side, m.
//!     #[schemars(range(min = 0.0))]
//!     side: f64,
//! }
//! impl Parameters for Square {}
//! impl Shape for Square {
//!     fn area(&self) -> f64 {
//!         self.side * self.side
//!     }
//! }
//!
//! struct Point;
//! impl Shape for Point {
//!     fn area(&self) -> f64 {
//!         0.0
//!     }
//! }
//!
//! const SHAPES: &[Part<dyn Shape>] = &[part!("square", Square), part!("point" = Point)];
//!
//! assert_eq!(names(SHAPES), ["square", "point"]);
//! let (square, _) = (find("shape", SHAPES, "square")?.make)(&serde_json::json!({ "side": 3.0 })).unwrap();
//! assert_eq!(square.area(), 9.0);
//! let error = find("shape", SHAPES, "sqare").err().unwrap();
//! assert_eq!(error.to_string(), "there is no shape `sqare`; use one of square, point");
//! # Ok::<(), tidegate_control::registry::UnknownPart>(())
//! ```

use std::fmt;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::keys::Wrong;

/// Makes a part from its table, where any key may be missing. Also returns the table with all defaults.
pub(crate) type Make<T> = fn(&Value) -> Result<(Arc<T>, Value), Wrong>;

/// One line of a registry; `M` is the function that makes the part.
#[derive(Debug)]
pub struct Entry<M> {
    /// The part's name in scenarios, configurations and on the command line.
    pub name: &'static str,
    /// The JSON Schema of its parameters, if it has parameters.
    pub schema: Option<fn() -> Value>,
    /// Publication that the part implements; `None` for designs of this project.
    pub origin: Option<&'static Origin>,
    /// Makes the part.
    pub make: M,
}

/// A published system, and how its implementation is known to be that system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The published name: "MLEFlow".
    pub system: &'static str,
    /// Publication, specification or code.
    pub source: &'static str,
    /// Tests against the authors' code, their worked numbers or the specification, each as `file: function`.
    pub oracles: &'static [&'static str],
    /// How the implementation deviates from the source; empty if no deviation is known.
    pub deviation: &'static str,
}

impl Origin {
    /// The name for tables: "our reading of PeerFlow" if no oracle confirms the implementation.
    pub fn title(&self) -> String {
        if self.oracles.is_empty() { format!("our reading of {}", self.system) } else { self.system.into() }
    }
}

/// A part that is made from its table alone.
pub type Part<T> = Entry<Make<T>>;

impl<T: ?Sized> Part<T> {
    /// The part with its default parameters.
    pub fn by_default(&self) -> Arc<T> {
        let (part, _) = (self.make)(&json!({})).expect("defaults are in their ranges");
        part
    }
}

/// All names of a registry, in its order.
pub fn names<M>(parts: &[Entry<M>]) -> Vec<&'static str> {
    parts.iter().map(|part| part.name).collect()
}

/// The part with this name. `family` names the registry in the error: "controller".
///
/// # Errors
/// [`UnknownPart`] with all names of the registry.
pub fn find<'a, M>(
    family: &'static str,
    parts: &'a [Entry<M>],
    name: &str,
) -> Result<&'a Entry<M>, UnknownPart> {
    parts.iter().find(|part| part.name == name).ok_or_else(|| UnknownPart {
        family,
        name: name.chars().take(40).collect(),
        known: names(parts),
    })
}

/// No part of the registry has this name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownPart {
    /// The family that the registry lists: "controller".
    pub family: &'static str,
    /// The unknown name, cut after 40 characters.
    pub name: String,
    /// All names of the registry.
    pub known: Vec<&'static str>,
}

impl fmt::Display for UnknownPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "there is no {} `{}`; use one of {}", self.family, self.name, self.known.join(", "))
    }
}

impl std::error::Error for UnknownPart {}

/// One line of a registry: `part!("name", Parameters)`, or `part!("name" = VALUE)` for a part without parameters. A part that
/// implements a published system ends with its [`Origin`](crate::registry::Origin): `part!("name", Parameters, ORIGIN)`.
///
/// `Parameters` implements [`keys::Parameters`](crate::keys::Parameters) and is itself the part.
#[macro_export]
macro_rules! part {
    ($name:literal, $parameters:ty $(, $origin:path)?) => {
        $crate::registry::Entry {
            name: $name,
            schema: Some($crate::keys::schema::<$parameters>),
            origin: const { <[$crate::registry::Origin]>::first(&[$($origin)?]) },
            make: |table| {
                $crate::registry::from_table::<$parameters>(table).map(|(part, all)| (part as _, all))
            },
        }
    };
    ($name:literal = $part:expr $(, $origin:path)?) => {
        $crate::registry::Entry {
            name: $name,
            schema: None,
            origin: const { <[$crate::registry::Origin]>::first(&[$($origin)?]) },
            make: |_| Ok((::std::sync::Arc::new($part), $crate::registry::NO_TABLE)),
        }
    };
}

/// The table of a part without parameters.
pub const NO_TABLE: Value = Value::Null;

/// Reads a part that is its parameters; [`part!`](crate::part) expands to this call.
///
/// # Errors
/// The first mistake in the table.
pub fn from_table<P: crate::keys::Parameters>(table: &Value) -> Result<(Arc<P>, Value), Wrong> {
    let part: P = crate::keys::read(table)?;
    let all = serde_json::to_value(&part).unwrap_or_default();
    Ok((Arc::new(part), all))
}
