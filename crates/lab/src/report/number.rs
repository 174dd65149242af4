//! How numbers are shown.

/// Four significant digits, or as many as whole numbers have.
pub(super) fn short(value: f64) -> String {
    let whole = value.fract() == 0.0 && value.abs() < 1e15;
    if whole || !value.is_finite() {
        return format!("{value}");
    }
    let digits = 3 - value.abs().log10().floor() as i32;
    format!("{value:.*}", digits.clamp(0, 9) as usize)
}
