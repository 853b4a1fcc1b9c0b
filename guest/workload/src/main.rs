//! What the test guest runs: it writes memory, checks what it reads back, and times every access.
//!
//! The program is the guest's `/init` once the small shell script has loaded the network driver.
//! It reads its options from the kernel command line (`hk.NAME=VALUE`, see [`options`]) and from
//! its own arguments, which is how the tests run it outside a guest.
//!
//! **Model.** A [`region`] of memory is shared out among worker threads, one worker a page, so that
//! no page needs a lock; or all of them only read it. A worker ([`worker`]) makes one access after the other: it picks a page
//! ([`page_order`]), touches it between two readings of the processor's clock ([`clock`]), checks what it
//! read, and writes. The first thread collects: once a second it prints what the workers counted,
//! and it obeys the lines that arrive on the console ([`console`]).
//!
//! **Ways of knowing that nothing was lost.** [`dirty`] is quick: one word a page, holding the
//! page's number and how often it was written, whose sum must equal the writes made. [`verify`] is
//! thorough: every byte of every page follows from its number and generation ([`page`]), and which
//! generation is due is remembered elsewhere. [`scan`] reads such pages once, from start to end,
//! when it is told to begin. In [`lockstep`] all workers read the same such page at once. [`web_files`] are for a web server's clients to check.
//! A [`disk`] of such pages is read and written by direct I/O beside any of these.
//!
//! **Time** is the guest's: while the guest is stopped its clock stands, so a switchover's downtime
//! does not show in these numbers, but every fault that is taken while it runs does.
//!
//! **What is missing.** Memory that was rolled back as a whole, table of generations included,
//! cannot be noticed from inside; the test harness looks at the generations from outside for that.
#![allow(unsafe_code)] // maps memory, pins threads, reads the time-stamp counter, powers off

mod clock;
mod console;
mod coordinator;
mod counters;
mod dirty;
mod disk;
mod fine_histogram;
mod guest_physical;
mod lockstep;
mod options;
mod page_order;
mod random;
mod rate_limiter;
mod region;
mod scan;
mod serve;
mod system;
mod verify;
mod web_files;
mod worker;
mod workloads;

use hikkoshi_workload::page;
use std::process::ExitCode;

fn main() -> ExitCode {
    // As a guest's first process there is nobody to return to.
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
