//! How many background links a migration has by default.

use std::num::NonZeroUsize;
use std::thread;

/// The most. Beyond that, processors do not limit the throughput.
const MAX_DEFAULT_LINKS: u16 = 8;

/// The default number of background links: half of the processors (the other half applies the
/// pages, or runs the guest), at least 1 and at most 8.
pub fn default_links() -> u16 {
    let processors = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    u16::try_from(processors / 2)
        .map_or(MAX_DEFAULT_LINKS, |links| links.clamp(1, MAX_DEFAULT_LINKS))
}
