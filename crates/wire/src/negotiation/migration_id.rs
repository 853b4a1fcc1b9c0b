//! The secret that assigns links to a migration.

use std::fmt;
use std::hint::black_box;

/// A migration's secret number: 128 random bits from the kernel, chosen by the
/// source. The source sends it on every link, so an unknown peer that can reach the
/// destination's port cannot join.
///
/// It is compared in constant time and never printed.
#[derive(Clone, Copy)]
pub struct MigrationId([u8; Self::LEN]);

impl MigrationId {
    /// Its length in bytes.
    pub const LEN: usize = 16;

    /// Returns the id with these bytes: new random ones, or those of a hello.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        Self(bytes)
    }

    /// Returns its bytes, for the hello. They are a secret.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; Self::LEN] {
        self.0
    }
}

impl PartialEq for MigrationId {
    fn eq(&self, other: &Self) -> bool {
        // Every byte is compared, also after a difference: the time must not
        // reveal how many bytes of a guess are right. `black_box` prevents the
        // compiler from adding an early return.
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
