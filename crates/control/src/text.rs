//! Serde and JSON Schema for values that are written as text with a unit.

use std::fmt::{self, Display};
use std::marker::PhantomData;
use std::str::FromStr;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer};

/// Reads a value from its text; refuses a bare number with the type's error, which shows an example.
///
/// # Errors
/// The deserializer's error with the text of [`FromStr`]'s.
pub fn read<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    deserializer.deserialize_any(Text(PhantomData))
}

/// Accepts the text of a `T`, for visitors that also accept other types.
pub struct Text<T>(pub PhantomData<T>);

impl<T: FromStr<Err: Display>> Visitor<'_> for Text<T> {
    type Value = T;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string with a number and a unit")
    }
    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }
    fn visit_i64<E: Error>(self, number: i64) -> Result<T, E> {
        Err(E::custom(bare_number::<T>(&number.to_string())))
    }
    fn visit_u64<E: Error>(self, number: u64) -> Result<T, E> {
        Err(E::custom(bare_number::<T>(&number.to_string())))
    }
    fn visit_f64<E: Error>(self, number: f64) -> Result<T, E> {
        Err(E::custom(bare_number::<T>(&number.to_string())))
    }
}

fn bare_number<T: FromStr<Err: Display>>(number: &str) -> String {
    match number.parse::<T>() {
        Err(error) => error.to_string(),
        Ok(_) => format!("`{number}` must be in quotation marks"),
    }
}

/// Lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads hexadecimal of either case; `None` unless it is exactly `N` bytes.
pub fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    if text.len() != 2 * N || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(bytes)
}

/// `#[serde(deserialize_with = "tidegate_control::text::read_hex")]`: a key or fingerprint in hexadecimal.
///
/// # Errors
/// The deserializer's, naming the number of digits that are expected. A leading `$` is allowed.
pub fn read_hex<'de, D: Deserializer<'de>, const N: usize>(deserializer: D) -> Result<[u8; N], D::Error> {
    let text = String::deserialize(deserializer)?;
    let digits = text.strip_prefix('$').unwrap_or(&text);
    unhex(digits).ok_or_else(|| D::Error::custom(format!("expected {} hexadecimal digits", 2 * N)))
}

/// As [`read_hex`], for a list.
///
/// # Errors
/// As [`read_hex`].
pub fn read_hex_list<'de, D: Deserializer<'de>, const N: usize>(
    deserializer: D,
) -> Result<Vec<[u8; N]>, D::Error> {
    #[derive(Deserialize)]
    #[serde(transparent)]
    struct Item<const N: usize>(#[serde(deserialize_with = "read_hex")] [u8; N]);
    Ok(Vec::<Item<N>>::deserialize(deserializer)?.into_iter().map(|item| item.0).collect())
}

/// `#[serde(with = "tidegate_control::text::size")]`: a number of bytes below 4 GiB, written with its unit.
pub mod size {
    use serde::{Deserialize, Deserializer, Serializer};

    use crate::units::Bytes;

    /// Writes it.
    ///
    /// # Errors
    /// The serializer's.
    pub fn serialize<S: Serializer>(bytes: &u32, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&Bytes((*bytes).into()))
    }

    /// Reads it.
    ///
    /// # Errors
    /// The deserializer's; a size of 4 GiB or more is refused.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
        let Bytes(bytes) = Bytes::deserialize(deserializer)?;
        u32::try_from(bytes).map_err(|_| serde::de::Error::custom(format!("{} is too large", Bytes(bytes))))
    }
}

/// Implements serde and JSON Schema for a type with `Display` and `FromStr`: in files it is a string.
///
/// `form` names the type in a word or two; the examples are strings that it reads.
///
/// ```
/// use tidegate_control::units::Span;
///
/// #[derive(serde::Deserialize)]
/// struct Table {
///     interval: Span,
/// }
/// let table: Table = serde_json::from_str(r#"{ "interval": "20 ms" }"#).unwrap();
/// assert_eq!(table.interval, Span::from_millis(20));
/// let refused = serde_json::from_str::<Table>(r#"{ "interval": 20 }"#).err().unwrap();
/// assert!(refused.to_string().contains("`20` has no unit"));
/// ```
#[macro_export]
macro_rules! written_as_text {
    ($type:ident, form = $form:literal, examples = [$($example:literal),+]) => {
        impl ::serde::Serialize for $type {
            fn serialize<S: ::serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> ::serde::Deserialize<'de> for $type {
            fn deserialize<D: ::serde::Deserializer<'de>>(deserializer: D) -> Result<$type, D::Error> {
                $crate::text::read(deserializer)
            }
        }

        impl ::schemars::JsonSchema for $type {
            fn inline_schema() -> bool {
                true
            }
            fn schema_name() -> ::std::borrow::Cow<'static, str> {
                stringify!($type).into()
            }
            fn json_schema(_: &mut ::schemars::SchemaGenerator) -> ::schemars::Schema {
                ::schemars::json_schema!({ "type": "string", "x-form": $form, "examples": [$($example),+] })
            }
        }
    };
}
