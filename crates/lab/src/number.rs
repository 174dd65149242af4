//! How reports, tables and notes write numbers.

/// Formats with four significant digits; whole numbers keep all of theirs.
pub fn format_number(value: f64) -> String {
    let whole = value.fract() == 0.0 && value.abs() < 1e15;
    if whole || !value.is_finite() {
        return format!("{value}");
    }
    // Nine decimals at most: anything smaller is a rounding error.
    if value.abs() < 5e-10 {
        return "0".into();
    }
    let digits = 3 - value.abs().log10().floor() as i32;
    format!("{value:.*}", digits.clamp(0, 9) as usize)
}
