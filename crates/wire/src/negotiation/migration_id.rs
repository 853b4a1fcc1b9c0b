//! The secret that binds links to one migration.

use std::fmt;
use std::hint::black_box;

/// The number of a migration. The source draws it at random (128 bits from the
/// kernel) and names it on every link, so that a stranger who reaches the
/// destination's port cannot join.
///
/// Compared in constant time, and never printed.
#[derive(Clone, Copy)]
pub struct MigrationId([u8; Self::LEN]);

impl MigrationId {
    /// Its length in bytes.
    pub const LEN: usize = 16;

    /// The id with these bytes: fresh random ones, or those from a hello.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        Self(bytes)
    }

    /// Its bytes, for the hello. They are a secret.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; Self::LEN] {
        self.0
    }
}

impl PartialEq for MigrationId {
    fn eq(&self, other: &Self) -> bool {
        // Every byte is looked at, whatever the ones before said: the time
        // taken does not tell how much of a guess was right. `black_box` keeps
        // the compiler from returning early.
        let differences = self
            .0
            .iter()
            .zip(&other.0)
            .fold(0, |seen, (one, two)| black_box(seen | (one ^ two)));
        differences == 0
    }
}

impl Eq for MigrationId {}

impl fmt::Debug for MigrationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MigrationId(secret)")
    }
}
