//! The versions of QEMU that hikkoshi was tested with.

use crate::qmp::Version;

/// The versions that the tests have: their first two numbers.
pub(super) const TESTED: [(u32, u32); 3] = [(7, 2), (10, 0), (11, 1)];

/// The versions that the tests have, for messages.
pub(super) const TESTED_NAMES: &str = "7.2, 10.0 and 11.1";

/// From this third number on, a version is a development version of the next minor one: 10.0.50
/// follows 10.0.0, and becomes 10.1.0 (QEMU's file `VERSION`).
const DEVELOPMENT: u32 = 50;

/// Whether hikkoshi was not tested with this version.
pub(super) fn is_untested(version: Version) -> bool {
    !TESTED.contains(&(version.major, version.minor)) || version.micro >= DEVELOPMENT
}
