//! Counts as floating-point numbers.

#[allow(clippy::cast_precision_loss)] // Counts are below 2^53.
pub(crate) fn float(number: u64) -> f64 {
    number as f64
}
