//! Time, rate and size as integers, and their text form.
//!
//! Time is a count of nanoseconds, so that a run is the same on any machine. Quantities in files carry
//! their unit (`"20 ms"`, `"10 Mbit/s"`, `"320 KiB"`); a bare number is an error, in serde too.

use std::fmt;
use std::ops::{Add, AddAssign, Div, Mul, Sub};
use std::str::FromStr;

/// A point in time: nanoseconds since the start of the run (simulated) or of the process (live).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

/// A length of time in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(pub u64);

/// A data rate in bits per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rate(pub u64);

/// A number of bytes, for parsing and printing; code computes with plain `u64`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

impl Time {
    /// The start of the run.
    pub const ZERO: Time = Time(0);
    /// Later than any event.
    pub const NEVER: Time = Time(u64::MAX);

    /// Seconds since the start.
    #[inline]
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// The span since `earlier`, zero if `earlier` is later.
    #[inline]
    pub fn since(self, earlier: Time) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

impl Span {
    /// No time at all.
    pub const ZERO: Span = Span(0);

    /// Whole microseconds.
    #[inline]
    pub const fn from_micros(us: u64) -> Span {
        Span(us * 1_000)
    }
    /// Whole milliseconds.
    #[inline]
    pub const fn from_millis(ms: u64) -> Span {
        Span(ms * 1_000_000)
    }
    /// Whole seconds.
    #[inline]
    pub const fn from_secs(s: u64) -> Span {
        Span(s * 1_000_000_000)
    }
    /// The number of seconds; `None` if it is not whole.
    #[inline]
    pub fn whole_secs(self) -> Option<u64> {
        let seconds = self.0 / Span::from_secs(1).0;
        (Span::from_secs(seconds) == self).then_some(seconds)
    }
    /// Seconds, rounded to the nearest nanosecond; negative and non-finite values give zero.
    #[inline]
    pub fn from_secs_f64(s: f64) -> Span {
        Span((s * 1e9).round() as u64)
    }
    /// Seconds.
    #[inline]
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }
}

impl Rate {
    /// No limit: every transfer takes zero time.
    pub const UNLIMITED: Rate = Rate(u64::MAX);

    /// From bytes per second.
    #[inline]
    pub const fn from_bytes_per_s(b: u64) -> Rate {
        Rate(b.saturating_mul(8))
    }
    /// Bytes per second.
    #[inline]
    pub fn as_bytes_per_s(self) -> f64 {
        self.0 as f64 / 8.0
    }
    /// How long `bytes` take at this rate, rounded up; zero when unlimited.
    ///
    /// # Panics
    /// If the rate is zero: the link is down, and the caller must check this before.
    #[inline]
    pub fn span_for(self, bytes: u64) -> Span {
        if self == Rate::UNLIMITED {
            return Span::ZERO;
        }
        assert!(self.0 > 0, "a rate of zero sends nothing");
        let bit_ns = u128::from(bytes) * 8_000_000_000;
        match u64::try_from(bit_ns) {
            Ok(small) => Span(small.div_ceil(self.0)),
            Err(_) => Span(bit_ns.div_ceil(u128::from(self.0)) as u64),
        }
    }
}

impl Add<Span> for Time {
    type Output = Time;
    #[inline]
    fn add(self, rhs: Span) -> Time {
        Time(self.0.saturating_add(rhs.0))
    }
}
impl AddAssign<Span> for Time {
    #[inline]
    fn add_assign(&mut self, rhs: Span) {
        *self = *self + rhs;
    }
}
impl Sub<Span> for Time {
    type Output = Time;
    #[inline]
    fn sub(self, rhs: Span) -> Time {
        Time(self.0.saturating_sub(rhs.0))
    }
}
impl Add for Span {
    type Output = Span;
    #[inline]
    fn add(self, rhs: Span) -> Span {
        Span(self.0.saturating_add(rhs.0))
    }
}
impl Sub for Span {
    type Output = Span;
    #[inline]
    fn sub(self, rhs: Span) -> Span {
        Span(self.0.saturating_sub(rhs.0))
    }
}
impl Mul<u64> for Span {
    type Output = Span;
    #[inline]
    fn mul(self, rhs: u64) -> Span {
        Span(self.0.saturating_mul(rhs))
    }
}
impl Div<u64> for Span {
    type Output = Span;
    #[inline]
    fn div(self, rhs: u64) -> Span {
        Span(self.0 / rhs)
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Span(self.0).fmt(f)
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&write_quantity(self.0, SPAN_UNITS))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Rate::UNLIMITED {
            return f.write_str("unlimited");
        }
        f.write_str(&write_quantity(self.0, &RATE_UNITS[..4]))
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&write_quantity(self.0, &BYTE_UNITS[..4]))
    }
}

/// The reason why a quantity could not be parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitError {
    text: String,
    why: &'static str,
    example: &'static str,
}

impl fmt::Display for UnitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` {}; write it like {}", self.text, self.why, self.example)
    }
}

impl std::error::Error for UnitError {}

/// Units and their size in the base unit; printing uses the first unit that divides evenly.
const SPAN_UNITS: &[(&str, u64)] = &[
    ("h", 3_600_000_000_000),
    ("min", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
    ("sec", 1_000_000_000),
    ("secs", 1_000_000_000),
    ("mins", 60_000_000_000),
    ("hr", 3_600_000_000_000),
    ("hrs", 3_600_000_000_000),
    ("µs", 1_000),
    ("m", 60_000_000_000),
    ("hour", 3_600_000_000_000),
    ("d", 86_400_000_000_000),
    ("day", 86_400_000_000_000),
    ("days", 86_400_000_000_000),
    ("hours", 3_600_000_000_000),
    ("minute", 60_000_000_000),
    ("minutes", 60_000_000_000),
    ("second", 1_000_000_000),
    ("seconds", 1_000_000_000),
    ("millisecond", 1_000_000),
    ("milliseconds", 1_000_000),
    ("μs", 1_000),
    ("microsecond", 1_000),
    ("microseconds", 1_000),
    ("nanosecond", 1),
    ("nanoseconds", 1),
];

/// Accepts "10 Mbit/s", "1.2 MB/s", and Shadow's "10 Mbit" (per second).
const RATE_UNITS: &[(&str, u64)] = &[
    ("Gbit/s", 1_000_000_000),
    ("Mbit/s", 1_000_000),
    ("kbit/s", 1_000),
    ("bit/s", 1),
    ("Gbit", 1_000_000_000),
    ("Mbit", 1_000_000),
    ("Kbit", 1_000),
    ("kbit", 1_000),
    ("bit", 1),
    ("Kbit/s", 1_000),
    ("Tbit", 1_000_000_000_000),
    ("Tibit", 1 << 40),
    ("Gibit", 1 << 30),
    ("Mibit", 1 << 20),
    ("Kibit", 1 << 10),
    ("Gibit/s", 1 << 30),
    ("Mibit/s", 1 << 20),
    ("Kibit/s", 1 << 10),
    ("GB/s", 8_000_000_000),
    ("MB/s", 8_000_000),
    ("kB/s", 8_000),
    ("KB/s", 8_000),
    ("B/s", 8),
    ("GiB/s", 8 << 30),
    ("MiB/s", 8 << 20),
    ("KiB/s", 8 << 10),
];

const BYTE_UNITS: &[(&str, u64)] = &[
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("B", 1),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("KB", 1_000),
    ("byte", 1),
    ("bytes", 1),
];

fn write_quantity(value: u64, units: &[(&str, u64)]) -> String {
    let (name, size) = units
        .iter()
        .take_while(|(_, size)| *size > 1)
        .find(|(_, size)| value != 0 && value.is_multiple_of(*size))
        .or_else(|| units.iter().find(|(_, size)| *size == 1))
        .expect("every unit table has a unit of one");
    format!("{} {name}", value / size)
}

/// A kind of quantity: its units, and what errors say of them.
struct Kind {
    units: &'static [(&'static str, u64)],
    unknown_unit: &'static str,
    /// Units of another kind that are mistaken for units of this one, and the error.
    confused: Option<(&'static [(&'static str, u64)], &'static str)>,
    example: &'static str,
}

const SPANS: Kind = Kind {
    units: SPAN_UNITS,
    unknown_unit: "has an unknown unit (times have ns, us, ms, s, min, h or d)",
    confused: None,
    example: "\"20 ms\"",
};

const RATES: Kind = Kind {
    units: RATE_UNITS,
    unknown_unit: "has an unknown unit (rates have bit/s, kbit/s, Mbit/s, Gbit/s, B/s, kB/s, MB/s or GB/s)",
    confused: Some((
        BYTE_UNITS,
        "is a size, not a rate (rates have bit/s, kbit/s, Mbit/s, Gbit/s, B/s, kB/s, MB/s or GB/s)",
    )),
    example: "\"10 Mbit/s\"",
};

const SIZES: Kind = Kind {
    units: BYTE_UNITS,
    unknown_unit: "has an unknown unit (sizes have B, kB, MB, GB, KiB, MiB or GiB)",
    confused: Some((RATE_UNITS, "is a rate, not a size (sizes have B, kB, MB, GB, KiB, MiB or GiB)")),
    example: "\"320 KiB\"",
};

/// Reads `<number> <unit>`: exact for whole numbers, rounded to the base unit otherwise.
fn parse_quantity(text: &str, kind: &Kind) -> Result<u64, UnitError> {
    let fail = |why| UnitError { text: text.chars().take(40).collect(), why, example: kind.example };
    let trimmed = text.trim();
    let split =
        trimmed.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_')).unwrap_or(trimmed.len());
    let (number, unit) = (trimmed[..split].replace('_', ""), trimmed[split..].trim());
    if trimmed.starts_with('-') {
        return Err(fail("is negative"));
    }
    if number.is_empty() {
        return Err(fail("does not begin with a number"));
    }
    if unit.is_empty() {
        return Err(fail("has no unit"));
    }
    let known = |units: &'static [(&'static str, u64)]| units.iter().find(|(name, _)| *name == unit);
    let (_, size) = known(kind.units).ok_or_else(|| match kind.confused {
        Some((others, why)) if known(others).is_some() => fail(why),
        _ => fail(kind.unknown_unit),
    })?;
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(*size).ok_or_else(|| fail("is too large"));
    }
    let real: f64 = number.parse().map_err(|_| fail("does not begin with a number"))?;
    let scaled = (real * *size as f64).round();
    if scaled < u64::MAX as f64 { Ok(scaled as u64) } else { Err(fail("is too large")) }
}

impl FromStr for Span {
    type Err = UnitError;
    fn from_str(s: &str) -> Result<Span, UnitError> {
        parse_quantity(s, &SPANS).map(Span)
    }
}

impl FromStr for Rate {
    type Err = UnitError;
    fn from_str(s: &str) -> Result<Rate, UnitError> {
        if s.trim() == "unlimited" {
            return Ok(Rate::UNLIMITED);
        }
        parse_quantity(s, &RATES).map(Rate)
    }
}

impl FromStr for Bytes {
    type Err = UnitError;
    fn from_str(s: &str) -> Result<Bytes, UnitError> {
        parse_quantity(s, &SIZES).map(Bytes)
    }
}

crate::written_as_text!(Span, form = "time", examples = ["20 ms", "7.5 s", "1 h"]);
crate::written_as_text!(Rate, form = "rate", examples = ["10 Mbit/s", "1.2 MB/s", "unlimited"]);
crate::written_as_text!(Bytes, form = "size", examples = ["320 KiB", "498 B"]);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_need_a_unit_and_keep_their_value() {
        assert_eq!("20 ms".parse(), Ok(Span::from_millis(20)));
        assert_eq!("0.4s".parse(), Ok(Span::from_millis(400)));
        for micro in ["50000 us", "50000 \u{b5}s", "50000 \u{3bc}s", "50000 microseconds"] {
            assert_eq!(micro.parse(), Ok(Span::from_millis(50)), "{micro}");
        }
        assert_eq!("10 Mbit/s".parse(), Ok(Rate(10_000_000)));
        assert_eq!("10 Mbit".parse(), Ok(Rate(10_000_000)));
        assert_eq!("512 KiB/s".parse(), Ok(Rate(512 * 1024 * 8)));
        assert_eq!("320 KiB".parse(), Ok(Bytes(327_680)));
        for bad in ["20", "-3 ms", "ms", "3 parsecs", "", "99999999999999999999 s", "1e400 s"] {
            assert!(bad.parse::<Span>().is_err(), "{bad} was accepted");
        }
    }

    #[test]
    fn errors_name_the_units_of_the_kind() {
        let rate = |text: &str| text.parse::<Rate>().unwrap_err().to_string();
        for wrong in ["8 Mbps", "8 mbit/s"] {
            assert!(rate(wrong).starts_with(&format!("`{wrong}` has an unknown unit (rates have bit/s,")));
        }
        assert!(rate("8 MB").starts_with("`8 MB` is a size, not a rate (rates have bit/s, "));
        assert!(rate("8 MB").ends_with("MB/s or GB/s); write it like \"10 Mbit/s\""));
        let size = "8 Mbit/s".parse::<Bytes>().unwrap_err().to_string();
        assert!(size.starts_with("`8 Mbit/s` is a rate, not a size (sizes have B, "), "{size}");
        // Each unit that an error lists is valid.
        for kind in [SPANS, RATES, SIZES] {
            let (_, listed) = kind.unknown_unit.split_once("have ").unwrap();
            let listed = listed.trim_end_matches(')').replace(" or ", ", ");
            assert!(
                listed.split(", ").all(|unit| kind.units.iter().any(|(name, _)| *name == unit)),
                "{listed}"
            );
        }
    }

    #[test]
    fn printing_and_reading_agree() {
        for ns in [0, 1, 999, 1_000, 40_000_000, 7_500_000_000, 3_600_000_000_000, u64::MAX] {
            assert_eq!(Span(ns).to_string().parse(), Ok(Span(ns)));
        }
        for bits in [0, 1, 4_000_000, 100_000_000, 1_234_567, u64::MAX] {
            assert_eq!(Rate(bits).to_string().parse(), Ok(Rate(bits)));
        }
        for bytes in [0, 498, 32 << 10, 5 << 20] {
            assert_eq!(Bytes(bytes).to_string().parse(), Ok(Bytes(bytes)));
        }
    }

    #[test]
    fn sending_takes_size_over_rate_rounded_up() {
        assert_eq!(Rate(4_000_000).span_for(1500), Span::from_millis(3));
        assert_eq!(Rate(3).span_for(1), Span(2_666_666_667));
        assert_eq!(Rate::UNLIMITED.span_for(u64::MAX), Span::ZERO);
        assert_eq!(Rate(8_000_000_000).span_for(u64::MAX), Span(u64::MAX));
    }
}
