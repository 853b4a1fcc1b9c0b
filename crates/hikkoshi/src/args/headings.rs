//! The headings of `--help`.

pub(super) const CONNECTION: &str = "Connection";
pub(super) const SSH: &str = "By ssh";
pub(super) const MIGRATION: &str = "Migration";
pub(super) const MEASUREMENT: &str = "Measurement";
pub(super) const TUNING: &str = "Tuning";
pub(super) const SECURITY: &str = "Security";
pub(super) const RECOVERY: &str = "Recovery";
pub(super) const OUTPUT: &str = "Output";
