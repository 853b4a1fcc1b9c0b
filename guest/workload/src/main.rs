//! The test guest's program: writes memory, checks its content, and times every access.
//!
//! The program replaces the guest's `/init` script once that has loaded the drivers. It reads its
//! options from the kernel command line (`hk.NAME=VALUE`, see [`options`]) and from its own
//! arguments, which tests use to run it outside a guest.
//!
//! **Model.** A [`region`] of memory is divided among worker threads, so that each page has one
//! worker and no page needs a lock; or all workers only read it. A worker ([`worker`]) repeatedly
//! selects a page ([`page_order`]), touches it between two readings of the processor's clock
//! ([`clock`]), checks its content, and writes it. The main thread ([`coordinator`]) prints the
//! workers' counters once a second, and executes the commands that arrive on the console
//! ([`console`]).
//!
//! **How losses are detected.** [`dirty`] is fast: one word per page contains the page's number and
//! how often it was written; the sum of the counts must equal the number of writes. [`verify`] is
//! thorough: every byte of a page follows from its number and generation ([`page`]), and the
//! expected generation is stored elsewhere. [`scan`] reads such pages once, from start to end, on
//! command. In [`lockstep`] all workers read the same such page at once. [`web_files`] are checked
//! by a web server's clients. A [`disk`] of such pages is read and written by direct I/O beside any
//! of these. Other [`devices`] are used on command; their results are checked by the tests.
//! [`returned`] memory is freed on command, and must be zero when it is used again. The guest's
//! [`runs`] are recorded on a disk, to find out whether it runs twice.
//!
//! **Time** is the guest's: while the guest is paused its clock stops, so these times do not
//! contain the downtime of a switchover, but they contain every fault while the guest runs.
//!
//! **What is missing.** A rollback of all memory, including the stored generations, cannot be
//! detected inside the guest; the tests check the generations from outside.
#![allow(unsafe_code)] // maps memory, pins threads, reads the time-stamp counter, powers off

mod clock;
mod console;
mod coordinator;
mod counters;
mod datagrams;
mod devices;
mod dirty;
mod disk;
mod fine_histogram;
mod guest_physical;
mod lockstep;
mod options;
mod page_order;
mod rate_limiter;
mod region;
mod returned;
mod runs;
mod scan;
mod serve;
mod system;
mod verify;
mod web_files;
mod worker;
mod workloads;

use hikkoshi_checked_pages::{page, random};
use std::process::ExitCode;

fn main() -> ExitCode {
    // The first process of a guest must not return.
    let in_guest = std::process::id() == 1;
    let line = std::fs::read_to_string("/proc/cmdline")
        .ok()
        .filter(|_| in_guest);
    let words = line
        .unwrap_or_default()
        .split_whitespace()
        .map(str::to_owned)
        .chain(std::env::args().skip(1))
        .collect::<Vec<_>>();
    let outcome = options::Options::parse(words.iter().map(String::as_str))
        .map_err(|error| error.to_string())
        .and_then(|options| coordinator::run(&options).map_err(|error| error.to_string()));
    let code = match &outcome {
        Ok(coordinator::Verdict::Ok) => ExitCode::SUCCESS,
        Ok(coordinator::Verdict::Bad) => ExitCode::FAILURE,
        Err(message) => {
            console::print_line(&format!("failed: {message}"));
            ExitCode::from(2)
        }
    };
    if in_guest {
        system::power_off();
    }
    code
}
