//! What the workers have found: bad pages.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use hikkoshi_checked_pages::page::{BadPage, Fault};

/// Findings that are printed; later ones are only counted, because the console is slow.
const PRINTED: u64 = 8;

static COUNT: AtomicU64 = AtomicU64::new(0);

/// Bad pages found so far.
pub fn count() -> u64 {
    COUNT.load(Relaxed)
}

/// `ok`, or `BAD` from the first finding on.
pub fn word() -> &'static str {
    if count() == 0 { "ok" } else { "BAD" }
}

/// Counts a finding, and prints it.
pub fn report(finding: impl fmt::Display) {
    if COUNT.fetch_add(1, Relaxed) < PRINTED {
        crate::say!("BAD: {finding}");
    }
}

/// A bad page at this address, with its content.
pub fn bad_page(bad: &BadPage, address: usize) {
    let (name, value) = match bad.fault {
        Fault::Stale { generation } => (" held_generation=", Some(generation)),
        Fault::Swapped { page } => (" held_page=", Some(page)),
        Fault::Zero | Fault::Corrupt | Fault::NotZero => ("", None),
    };
    report(format_args!(
        "page={} address={address:#x} physical={address:#x} fault={} word={} held={:#x} wanted={:#x} \
         wanted_generation={}{name}{}",
        bad.page,
        bad.fault,
        bad.word,
        bad.held,
        bad.wanted,
        bad.generation,
        Optional(value),
    ));
}

struct Optional(Option<u64>);

impl fmt::Display for Optional {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |number| number.fmt(f))
    }
}
