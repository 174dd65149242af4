//! How reports, tables and notes write numbers.

/// Formats with up to four significant digits; whole numbers keep all of theirs.
pub fn format_number(value: f64) -> String {
    let whole = value.fract() == 0.0 && value.abs() < 1e15;
    if whole || !value.is_finite() {
        // The sum makes a negative zero positive.
        return format!("{}", value + 0.0);
    }
    // Nine decimals at most: anything smaller is a rounding error.
    if value.abs() < 5e-10 {
        return "0".into();
    }
    let digits = 3 - value.abs().log10().floor() as i32;
    let text = format!("{value:.*}", digits.clamp(0, 9) as usize);
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// A relative change in percent with its interval, if it is known: "-29 % [-33, -26]" for -0.29.
pub fn format_change(change: f64, interval: Option<[f64; 2]>) -> String {
    // "-0" says on which side of zero a small number is.
    let percent = |value: f64| format!("{:+.0}", 100.0 * value);
    match interval {
        Some([low, high]) => format!("{} % [{}, {}]", percent(change), percent(low), percent(high)),
        None => format!("{} %", percent(change)),
    }
}

/// Factor from bytes per second to the unit in which `most` has one to three digits before the point, and the unit.
pub(crate) fn rate_unit(most: f64) -> (f64, &'static str) {
    match most.abs() {
        ..1e6 => (1e-3, "kB/s"),
        1e6..1e9 => (1e-6, "MB/s"),
        _ => (1e-9, "GB/s"),
    }
}

/// As [`rate_unit`], for bytes.
pub(crate) fn size_unit(most: f64) -> (f64, &'static str) {
    match most.abs() {
        ..1e6 => (1e-3, "kB"),
        1e6..1e9 => (1e-6, "MB"),
        _ => (1e-9, "GB"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_four_digits_and_a_fitting_unit() {
        for (value, text) in [
            (0.98, "0.98"),
            (95_726.0, "95726"),
            (1.0, "1"),
            (-0.0, "0"),
            (1e-12, "0"),
            (0.0123456, "0.01235"),
        ] {
            assert_eq!(format_number(value), text);
        }
        let shown = |bytes: f64| {
            let (scale, unit) = rate_unit(bytes);
            format!("{} {unit}", format_number(bytes * scale))
        };
        assert_eq!([shown(95_726_400.0), shown(950_000.5), shown(3e9)], ["95.73 MB/s", "950 kB/s", "3 GB/s"]);
        assert_eq!(size_unit(2e6).1, "MB");
        assert_eq!(format_change(-0.012, Some([-0.026, -0.001])), "-1 % [-3, -0]");
    }
}
