//! The headings of `--help`.

pub const CONNECTION: &str = "Connection";
pub const MIGRATION: &str = "Migration";
pub const TUNING: &str = "Tuning";
pub const SECURITY: &str = "Security";
pub const RECOVERY: &str = "Recovery";
pub const OUTPUT: &str = "Output";
