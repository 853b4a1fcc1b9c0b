//! Values that the journal stores.

use std::fmt::Display;
use std::ops::RangeInclusive;

/// Refuses a value that the command line refuses.
pub(super) fn within<T: PartialOrd + Display, E: serde::de::Error>(
    option: &str,
    value: T,
    range: &RangeInclusive<T>,
) -> Result<T, E> {
    match range.contains(&value) {
        true => Ok(value),
        false => Err(E::custom(format!("--{option}: {value} is out of range"))),
    }
}
