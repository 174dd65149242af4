//! Tor's geoip file: the countries of IPv4 addresses.
//!
//! Lines have the form `first,last,CC` with addresses as numbers; `#` begins a comment (tor's `src/config/geoip`).

use std::net::Ipv4Addr;

use crate::country::Country;
use crate::document::{DataError, Document, quote};

/// Address ranges with their countries.
#[derive(Clone, Debug)]
pub struct GeoIp {
    /// First, last, country; ascending.
    ranges: Vec<(u32, u32, Country)>,
}

impl GeoIp {
    /// The country of an address; `None` if unknown.
    pub fn country(&self, address: Ipv4Addr) -> Option<Country> {
        let address = u32::from(address);
        let after = self.ranges.partition_point(|(first, ..)| *first <= address);
        let (_, last, country) = *self.ranges.get(after.checked_sub(1)?)?;
        (address <= last).then_some(country)
    }

    /// Number of ranges with a country.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.ranges.len()
    }
}

/// Reads a geoip file. Skips ranges with codes that are not a country (`??`, `EU`).
///
/// # Errors
/// If a line is malformed, ranges overlap or descend, or all ranges lack a country.
pub fn read(document: &Document) -> Result<GeoIp, DataError> {
    let mut ranges = Vec::new();
    let mut free_from = 0u64;
    for (line, text) in document.lines() {
        if text.starts_with('#') || text.trim().is_empty() {
            continue;
        }
        let fail = |cause: String| document.error_at(line, cause, "give Tor's geoip file for IPv4");
        let mut fields = text.split(',');
        let (Some(first), Some(last), Some(code), None) =
            (fields.next(), fields.next(), fields.next(), fields.next())
        else {
            return Err(fail(format!("{} is not `first,last,country`", quote(text))));
        };
        let (Ok(first), Ok(last)) = (first.parse::<u32>(), last.parse::<u32>()) else {
            return Err(fail(format!("{} does not begin with two addresses as numbers", quote(text))));
        };
        if first > last || u64::from(first) < free_from {
            return Err(fail(format!("the range {first}-{last} is reversed or overlaps the one before")));
        }
        if code.len() != 2 {
            return Err(fail(format!("{} is not a country code", quote(code))));
        }
        // Ranges without a known country count for the order, too.
        free_from = u64::from(last) + 1;
        if let Some(country) = Country::from_code(code) {
            ranges.push((first, last, country));
        }
    }
    if ranges.is_empty() {
        return Err(
            document.error("does not hold any range with a country", "give Tor's geoip file for IPv4")
        );
    }
    Ok(GeoIp { ranges })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str) -> Result<GeoIp, DataError> {
        read(&Document::new("geoip", text)?)
    }

    #[test]
    fn addresses_fall_into_ranges() {
        let geoip = read_text("# made up\n10,19,DE\n20,29,??\n30,30,fr\n").unwrap();
        let country = |address: u32| geoip.country(Ipv4Addr::from(address)).map(|c| c.to_string());
        assert_eq!(
            [9, 10, 19, 20, 30, 31].map(country),
            [None, Some("DE".into()), Some("DE".into()), None, Some("FR".into()), None]
        );
        assert_eq!(geoip.len(), 2);
    }

    #[test]
    fn malformed_lines_are_refused_with_their_number() {
        for bad in
            ["10,19", "10,19,DE,x", "a,19,DE", "19,10,DE", "5,7,DE", "4294967296,4294967297,DE", "9,9,DEU"]
        {
            let error = read_text(&format!("1,7,DE\n{bad}\n")).unwrap_err();
            assert_eq!(error.line, Some(2), "{bad}: {error}");
        }
        assert!(read_text("# only a comment\n").is_err());
    }
}
