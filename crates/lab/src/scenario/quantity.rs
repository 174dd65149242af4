//! Values of a scenario file that carry a unit, and how serde reads and writes them.

use std::borrow::Cow;
use std::fmt::{self, Display};
use std::marker::PhantomData;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tidegate_control::keys::PAIR;
use tidegate_control::text::Text;
use tidegate_control::units::{Bytes, Span};
use tidegate_control::written_as_text;
use tidegate_sim::plan::QueuePlan;

/// One value, or the two ends of a range to draw from: `"1 s"` or `["1 s", "30 s"]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Between<T> {
    /// The smallest value.
    pub low: T,
    /// The largest value.
    pub high: T,
}

impl<T: Copy> Between<T> {
    /// The range that holds only this value.
    pub(crate) fn fixed(value: T) -> Between<T> {
        Between { low: value, high: value }
    }
}

impl<T: JsonSchema> JsonSchema for Between<T> {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> Cow<'static, str> {
        format!("Between{}", T::schema_name()).into()
    }
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = T::json_schema(generator);
        let form = schema.get("x-form").and_then(|form| form.as_str()).unwrap_or("value").to_owned();
        schema.insert("x-form".into(), (form + PAIR).into());
        schema.insert("type".into(), vec!["string", "array"].into());
        schema
    }
}

impl<T: Display + PartialEq> Serialize for Between<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.low == self.high {
            serializer.collect_str(&self.low)
        } else {
            serializer.collect_seq([self.low.to_string(), self.high.to_string()])
        }
    }
}

impl<'de, T: Deserialize<'de> + FromStr<Err: Display> + PartialOrd + Copy> Deserialize<'de> for Between<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Ends<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de> + FromStr<Err: Display> + PartialOrd + Copy> Visitor<'de> for Ends<T> {
            type Value = Between<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a quantity, or a list of two: [lowest, highest]")
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Between<T>, E> {
                Text(PhantomData).visit_str(text).map(Between::fixed)
            }
            fn visit_i64<E: Error>(self, number: i64) -> Result<Between<T>, E> {
                Text(PhantomData).visit_i64(number).map(Between::fixed)
            }
            fn visit_f64<E: Error>(self, number: f64) -> Result<Between<T>, E> {
                Text(PhantomData).visit_f64(number).map(Between::fixed)
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Between<T>, A::Error> {
                let mut next = || list.next_element::<T>();
                match (next()?, next()?, next()?) {
                    (Some(low), Some(high), None) if low <= high => Ok(Between { low, high }),
                    (Some(_), Some(_), None) => Err(A::Error::custom(
                        "the first value of a range is above the second; write [lowest, highest]",
                    )),
                    _ => Err(A::Error::custom("a range needs exactly two values: [lowest, highest]")),
                }
            }
        }
        deserializer.deserialize_any(Ends(PhantomData))
    }
}

/// A finite or endless size: `"50 KiB"` or `"endless"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size(pub u64);

impl Size {
    /// A response that never ends.
    pub(crate) const ENDLESS: Size = Size(u64::MAX);
}

impl Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Size::ENDLESS { f.write_str("endless") } else { Bytes(self.0).fmt(f) }
    }
}

impl FromStr for Size {
    type Err = String;
    fn from_str(text: &str) -> Result<Size, String> {
        match text.trim() {
            "endless" => Ok(Size::ENDLESS),
            other => match other.parse::<Bytes>() {
                Ok(Bytes(0)) => Err("a response needs at least 1 B".into()),
                Ok(Bytes(bytes)) => Ok(Size(bytes)),
                Err(error) => Err(format!("{error}, or \"endless\"")),
            },
        }
    }
}

/// A timeout that may be infinite: `"15 s"` or `"never"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub(crate) struct Timeout(pub Span);

impl Timeout {
    /// No timeout.
    pub(crate) const NEVER: Timeout = Timeout(Span(u64::MAX));
}

impl Display for Timeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Timeout::NEVER { f.write_str("never") } else { self.0.fmt(f) }
    }
}

impl FromStr for Timeout {
    type Err = String;
    fn from_str(text: &str) -> Result<Timeout, String> {
        match text.trim() {
            "never" => Ok(Timeout::NEVER),
            other => other.parse().map(Timeout).map_err(|error| format!("{error}, or \"never\"")),
        }
    }
}

/// A link's queue: `"1000 packets"`, `"64 KiB"`, `"codel"`, `"codel 5 ms 100 ms 1000 packets"`, or
/// `"shadow"`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Queue(pub QueuePlan);

impl Queue {
    /// Drop-tail with a limit in packets.
    pub(crate) const fn packets(packets: u32) -> Queue {
        Queue(QueuePlan::DropTail { packets, bytes: u64::MAX })
    }
}

impl Display for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            QueuePlan::DropTail { packets: u32::MAX, bytes: u64::MAX } => f.write_str("unlimited"),
            QueuePlan::DropTail { packets, bytes: u64::MAX } => write!(f, "{packets} packets"),
            QueuePlan::DropTail { bytes, .. } => Bytes(bytes).fmt(f),
            QueuePlan::CoDel { target, interval, packets } => {
                write!(f, "codel {target} {interval} {packets} packets")
            }
            QueuePlan::Shadow => f.write_str("shadow"),
            QueuePlan::Machine => f.write_str("machine"),
        }
    }
}

impl FromStr for Queue {
    type Err = String;
    fn from_str(text: &str) -> Result<Queue, String> {
        const EXAMPLE: &str = "write it like \"1000 packets\", \"64 KiB\", \"unlimited\" or \"codel\"";
        let words: Vec<&str> = text.split_whitespace().collect();
        let number =
            |word: &str| word.parse::<u32>().map_err(|_| format!("`{text}` is not a queue; {EXAMPLE}"));
        match words[..] {
            ["unlimited"] => Ok(Queue::packets(u32::MAX)),
            ["shadow"] => Ok(Queue(QueuePlan::Shadow)),
            ["codel"] => Ok(Queue(QueuePlan::CoDel {
                target: Span::from_millis(5),
                interval: Span::from_millis(100),
                packets: 1000,
            })),
            ["codel", target, target_unit, interval, interval_unit, packets, "packets"] => {
                let span = |n: &str, unit: &str| {
                    format!("{n} {unit}").parse::<Span>().map_err(|error| error.to_string())
                };
                Ok(Queue(QueuePlan::CoDel {
                    target: span(target, target_unit)?,
                    interval: span(interval, interval_unit)?,
                    packets: number(packets)?,
                }))
            }
            [packets, "packets"] => number(packets).map(Queue::packets),
            _ => match text.parse::<Bytes>() {
                Ok(Bytes(bytes)) => Ok(Queue(QueuePlan::DropTail { packets: u32::MAX, bytes })),
                Err(_) => Err(format!("`{text}` is not a queue; {EXAMPLE}")),
            },
        }
    }
}

impl Default for Queue {
    fn default() -> Queue {
        Queue::packets(1000)
    }
}

impl Default for Timeout {
    fn default() -> Timeout {
        Timeout::NEVER
    }
}

written_as_text!(Size, form = "size, or \"endless\"", examples = ["320 KiB", "endless"]);
written_as_text!(Timeout, form = "time, or \"never\"", examples = ["15 s", "never"]);
written_as_text!(
    Queue,
    form = "queue",
    examples = ["1000 packets", "64 KiB", "unlimited", "codel", "shadow"]
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_round_trip_through_text() {
        for text in ["1000 packets", "64 KiB", "unlimited", "shadow", "codel 5 ms 100 ms 1000 packets"] {
            assert_eq!(text.parse::<Queue>().unwrap().to_string(), text);
        }
        assert_eq!("codel".parse::<Queue>().unwrap().to_string(), "codel 5 ms 100 ms 1000 packets");
        for text in ["", "5", "-5 packets", "codel 5", "packets"] {
            assert!(text.parse::<Queue>().is_err(), "{text}");
        }
        assert_eq!("endless".parse(), Ok(Size::ENDLESS));
        assert!("0 B".parse::<Size>().is_err());
        assert_eq!("never".parse(), Ok(Timeout::NEVER));
    }

    #[test]
    fn a_range_is_one_value_or_two_in_order() {
        #[derive(Deserialize, Debug)]
        struct Holder {
            pause: Between<Span>,
        }
        let read = |text: &str| toml::from_str::<Holder>(text).map(|holder| holder.pause);
        assert_eq!(read("pause = '2 s'").unwrap(), Between::fixed(Span::from_secs(2)));
        let both = Between { low: Span::from_secs(1), high: Span::from_secs(30) };
        assert_eq!(read("pause = ['1 s', '30 s']").unwrap(), both);
        for bad in ["pause = ['2 s', '1 s']", "pause = ['1 s']", "pause = 5", "pause = ['1 s', '2 s', '3 s']"]
        {
            assert!(read(bad).is_err(), "{bad}");
        }
        assert!(read("pause = 5").unwrap_err().message().contains("has no unit"));
    }
}
