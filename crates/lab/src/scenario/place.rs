//! Positions of a scenario's keys in its text, for error messages.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut, Range};

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A value with its position in the file. A default has the empty span.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Placed<T>(Spanned<T>);

/// A name that refers to another table, host or file.
pub type Name = Placed<String>;

impl<T> Placed<T> {
    /// A value without a position, such as a default.
    pub(crate) fn nowhere(value: T) -> Placed<T> {
        Placed(Spanned::new(0..0, value))
    }

    /// The value's byte range in the file.
    pub(crate) fn span(&self) -> Range<usize> {
        self.0.span()
    }

    /// The value, mutable.
    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }

    /// The value.
    pub fn get_ref(&self) -> &T {
        self.0.get_ref()
    }
}

impl<T: Default> Default for Placed<T> {
    fn default() -> Placed<T> {
        Placed::nowhere(T::default())
    }
}

impl<T> Deref for Placed<T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.0.get_ref()
    }
}

impl<T> DerefMut for Placed<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }
}

impl<T: JsonSchema> JsonSchema for Placed<T> {
    fn inline_schema() -> bool {
        T::inline_schema()
    }
    fn schema_name() -> Cow<'static, str> {
        T::schema_name()
    }
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        T::json_schema(generator)
    }
}

/// The positions of all keys and values of a document, by path.
#[derive(Debug, Default)]
pub(super) struct Places(BTreeMap<Vec<String>, [Range<usize>; 2]>);

impl Places {
    /// Returns the positions in a document, and the document as a JSON value.
    pub(crate) fn of(document: &Spanned<DeTable<'_>>) -> (Places, Value) {
        let mut places = Places([(Vec::new(), [document.span(), document.span()])].into());
        let value = places.table(document.get_ref(), &mut Vec::new());
        (places, value)
    }

    /// The position of a key or of its value; falls back to the nearest enclosing table with a position.
    pub(crate) fn find(&self, path: &[String], at_key: bool) -> Range<usize> {
        let mut places = (0..=path.len()).rev().filter_map(|length| self.0.get(&path[..length]));
        places.next().map_or(0..0, |[key, value]| if at_key { key.clone() } else { value.clone() })
    }

    fn table(&mut self, table: &DeTable<'_>, path: &mut Vec<String>) -> Value {
        let entry = |(key, value): (&Spanned<Cow<'_, str>>, &Spanned<DeValue<'_>>)| {
            path.push(key.get_ref().to_string());
            self.0.insert(path.clone(), [key.span(), value.span()]);
            let value = self.value(value.get_ref(), path);
            (path.pop().expect("pushed above"), value)
        };
        Value::Object(table.iter().map(entry).collect())
    }

    fn value(&mut self, value: &DeValue<'_>, path: &mut Vec<String>) -> Value {
        match value {
            DeValue::String(text) => Value::String(text.to_string()),
            DeValue::Integer(number) => {
                let parse = |radix| i64::from_str_radix(number.as_str(), radix).ok();
                parse(number.radix()).map_or(Value::Null, Value::from)
            }
            DeValue::Float(number) => number.as_str().parse::<f64>().map_or(Value::Null, Value::from),
            DeValue::Boolean(flag) => Value::Bool(*flag),
            DeValue::Datetime(when) => Value::String(when.to_string()),
            DeValue::Array(list) => {
                let item = |(number, item): (usize, &Spanned<DeValue<'_>>)| {
                    path.push(number.to_string());
                    self.0.insert(path.clone(), [item.span(), item.span()]);
                    let item = self.value(item.get_ref(), path);
                    path.pop();
                    item
                };
                Value::Array(list.iter().enumerate().map(item).collect())
            }
            DeValue::Table(table) => self.table(table, path),
        }
    }
}
