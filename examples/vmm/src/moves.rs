//! The program: moves a guest by each mode and with each dirty log.

#![allow(clippy::print_stdout)] // The table is what the program is for.

use std::path::Path;
use std::thread;

use error_reporter::Report;
use hikkoshi_engine::{Account, CancelFlag, Mode};
use hikkoshi_link::{Address, Listener};

use crate::Result;
use crate::check::GuestCheck;
use crate::embedding::{Destination, Source, Tracker};
use crate::monitor::console::Console;
use crate::monitor::machine::{Machine, REFUSED};

/// 32 MiB, written at some ten MiB a second by two threads, and a report every 25 ms.
const COMMAND_LINE: &str = "hk.workload=verify hk.mib=32 hk.rate=5000 hk.every_ms=25 hk.threads=2";

/// Prints a row for each move.
pub(crate) fn move_by_each_mode(kernel: &Path) -> Result<()> {
    println!(
        "mode      dirty log       rounds  pre-copied  urgent  background  downtime  pages  guest"
    );
    for mode in [Mode::Precopy, Mode::Postcopy, Mode::Hybrid] {
        let trackers: &[Tracker] = match mode {
            // It needs no dirty log.
            Mode::Postcopy => &[Tracker::Bitmap],
            _ => &[
                Tracker::Bitmap,
                Tracker::ManualProtect,
                Tracker::Ring,
                Tracker::Pagemap,
            ],
        };
        for tracker in trackers {
            let (account, pages) = move_guest(kernel, mode, *tracker)
                .map_err(|error| format!("{mode:?} with {tracker:?}: {error}"))?;
            print_row(mode, *tracker, &account, pages);
        }
    }
    Ok(())
}

fn print_row(mode: Mode, tracker: Tracker, account: &Account, pages: u64) {
    let log = match mode {
        Mode::Postcopy => "-".to_owned(),
        _ => format!("{tracker:?}"),
    };
    println!(
        "{:<8}  {log:<14}  {:>6}  {:>10}  {:>6}  {:>10}  {:>5.1} ms  {pages:>5}  ok",
        format!("{mode:?}").to_lowercase(),
        account.rounds,
        account.pages.precopy,
        account.pages.urgent,
        account.pages.background,
        account.downtime_ms.unwrap_or_default(),
    );
}

/// Moves a guest that runs, and checks it: at the source when a destination has refused it, and
/// where it arrives. Returns how many pages it has checked.
fn move_guest(kernel: &Path, mode: Mode, tracker: Tracker) -> Result<(Account, u64)> {
    let console = Console::default();
    let mut machine = Machine::new(console.clone(), tracker == Tracker::Ring)?;
    machine.boot(kernel, COMMAND_LINE)?;
    let check = GuestCheck::before_move(&machine, &console)?;

    let mut source = Source::new(machine, tracker)?;
    let mut refusing = Destination::new(Machine::new(console.clone(), false)?)?;
    refusing.machine.refuse_state();
    match run_engines(&mut source, &mut refusing, mode) {
        Err(error) if error.to_string().contains(REFUSED) => {}
        Err(error) => return Err(error),
        Ok(_) => return Err("the destination has not refused the device state".into()),
    }
    check.after_move(&source.machine, &console)?;

    let mut source = Source::new(source.machine, tracker)?;
    let mut destination = Destination::new(Machine::new(console.clone(), false)?)?;
    let account = run_engines(&mut source, &mut destination, mode)?;
    let pages = check.after_move(&destination.machine, &console)?;
    Ok((account, pages))
}

/// Moves the guest of `source` into `destination`: two threads here, two hosts elsewhere.
fn run_engines(source: &mut Source, destination: &mut Destination, mode: Mode) -> Result<Account> {
    let listener = Listener::bind(&"127.0.0.1:0".parse::<Address>()?)?;
    let remote = listener.address().clone().into();
    let cancel = CancelFlag::new();
    let (migrated, received) = thread::scope(|scope| {
        let receiving = scope.spawn(|| destination.receive(&listener, cancel.clone()));
        let migrated = source.migrate(&remote, mode);
        if migrated.is_err() {
            // It may not have connected.
            cancel.cancel();
        }
        (migrated, receiving.join())
    });
    let received = received.map_err(|_| "the destination's thread panicked")?;
    match (migrated, received) {
        (Ok(account), Ok(_)) => Ok(account),
        (migrated, received) => {
            let errors = [("source", migrated.err()), ("destination", received.err())];
            let errors = errors.into_iter().filter_map(|(side, error)| {
                error.map(|error| format!("{side}: {}", Report::new(&*error)))
            });
            Err(errors.collect::<Vec<_>>().join("; ").into())
        }
    }
}
