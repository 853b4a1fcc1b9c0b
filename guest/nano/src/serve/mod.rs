//! The server: of lines and datagrams, as in the Linux test guest, and of files.

pub mod files;
mod http;
mod lines;

use crate::clock::Clock;
use crate::config::Config;
use crate::counters::Thousandths;
use crate::net::{self, Connection};
use crate::say;
use crate::scheduler::NETWORK_TASK;
use crate::tasks::{self, sleep_until};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Lines answered so far.
static LINES: AtomicU64 = AtomicU64::new(0);
/// Files sent so far.
static SENT: AtomicU64 = AtomicU64::new(0);

/// Starts the tasks of the server, if the options want one, and waits until clients can connect.
/// They are on the processors in turn, and the network's is on the first.
pub fn start(config: &'static Config, processors: usize) {
    let options = &config.options;
    if !options.has_server() {
        return;
    }
    if options.files > 0 && files::create(options.files, options.file_bytes).is_none() {
        crate::fail("hk.files is more than the memory");
    }
    NETWORK_TASK.store(tasks::spawn(0, net::run, 0), Relaxed);
    // The connections' tasks use them only when a client has connected.
    while !net::is_ready() {
        sleep_until(crate::clock::ticks() + config.clock.ticks_of_us(1000));
    }
    let lines = if options.serve { net::MOST_LINES } else { 0 };
    let files = if options.files > 0 {
        net::MOST_FILES
    } else {
        0
    };
    for number in 0..lines {
        tasks::spawn(number % processors, lines::run, number);
    }
    for number in 0..files {
        tasks::spawn(number % processors, http::run, number);
    }
}

/// Prints the reports of an interval.
pub fn report(config: &Config, t: Thousandths, span_ms: u64) {
    let options = &config.options;
    if options.serve {
        let [arrived, missing, repeated] = net::datagram_counts();
        say!(
            "serve: ok t={t} span_ms={span_ms} open={} lines={} datagrams={arrived} \
             missing={missing} repeated={repeated}",
            open(&net::LINES),
            LINES.load(Relaxed),
        );
    }
    if options.files > 0 {
        say!(
            "files: {} t={t} span_ms={span_ms} open={} sent={} bad={}",
            crate::findings::word(),
            open(&net::FILES),
            SENT.load(Relaxed),
            crate::findings::count(),
        );
    }
}

fn open(connections: &[Connection]) -> usize {
    let used = |connection: &&Connection| connection.is_used();
    connections.iter().filter(used).count()
}

/// The monotonic clock, in nanoseconds: KVM's, or the counter.
fn monotonic(clock: Clock) -> u64 {
    match crate::kvm_clock::read() {
        Some((_, nanoseconds)) => nanoseconds,
        None => clock.nanoseconds(crate::clock::ticks()),
    }
}
