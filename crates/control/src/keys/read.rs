//! Reads the parameters of a part from its table.

use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::check::{Wrong, check, wrong};
use super::list::schema;

/// The parameters of a part, which a table of a file sets.
pub trait Parameters: Default + Serialize + DeserializeOwned + JsonSchema {
    /// Values of missing keys. Override it if they depend on a key that `given` sets, such as a preset.
    fn base(_given: &Value) -> Self {
        Self::default()
    }

    /// A mistake among values that are each in their range: the cause and a fix.
    fn mistake(&self) -> Option<(&'static str, &'static str)> {
        None
    }
}

/// Reads the parameters of a part from its table, in which any key may be missing.
///
/// # Errors
/// The first mistake.
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
