//! A KVM monitor on rust-vmm's crates that moves its guest by the engine, as source and as
//! destination.
//!
//! `docs/embedding.md` leads through it. What an author of a monitor writes is in [`source`] and
//! [`destination`], which implement the engine's two traits, and in [`engines`], which runs both
//! sides. [`monitor`] is the monitor itself: virtual processors (`vcpu`), memory in a memfd
//! (`memory`), a few devices (`ports`), a kernel that is booted by PVH (`boot`), and the device
//! state (`state`).
//!
//! The guest is the nano guest of `guest/nano`, which writes and checks its memory. Each move has
//! two machines in this process, whose engines talk over a unix socket; on two hosts the code is
//! the same. Afterwards the guest must continue and report that every page is right, and its clock
//! must not have gone back.
//!
//! It needs `/dev/kvm`, Linux 6.7, and the right to handle the kernel's page faults by userfaultfd
//! (root, `vm.unprivileged_userfaultfd=1`, or access to `/dev/userfaultfd`):
//!
//! ```text
//! make guest
//! cargo run --release --package hikkoshi-vmm -- build/nano/x86_64-unknown-linux-gnu/release/nano
//! ```

#![allow(clippy::print_stdout)] // The table is what the program is for.

mod destination;
mod engines;
mod guest_check;
mod monitor;
mod source;

use std::error::Error;
use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use hikkoshi_engine::{Account, Mode};

use crate::destination::{Destination, REFUSED};
use crate::engines::run_engines;
use crate::guest_check::GuestCheck;
use crate::monitor::console::Console;
use crate::monitor::machine::Machine;
use crate::source::{Source, Tracker};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// 32 MiB, written at some ten MiB a second, and a report every 25 ms.
const COMMAND_LINE: &str = "hk.workload=verify hk.mib=32 hk.rate=5000 hk.every_ms=25";

/// Moves the nano guest between two monitors, by each mode and with each dirty log.
#[derive(Debug, Parser)]
struct Args {
    /// The kernel: an ELF file with a PVH entry.
    kernel: PathBuf,
    /// The number of processors.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=16))]
    cpus: u8,
    /// Only this mode.
    #[arg(long)]
    mode: Option<ModeName>,
    /// Only this dirty log.
    #[arg(long)]
    tracker: Option<Tracker>,
    /// Before each move, begin another one, whose destination refuses the device state. The guest
    /// must continue at the source.
    #[arg(long)]
    refuse_first: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ModeName {
    Precopy,
    Postcopy,
    Hybrid,
}

impl ModeName {
    fn mode(self) -> Mode {
        match self {
            Self::Precopy => Mode::Precopy,
            Self::Postcopy => Mode::Postcopy,
            Self::Hybrid => Mode::Hybrid,
        }
    }
}

fn main() -> Result<()> {
    let args = Args::parse();
    println!(
        "mode      dirty log       rounds  pre-copied  urgent  background  downtime  pages  guest"
    );
    for mode in ModeName::value_variants() {
        for tracker in Tracker::value_variants() {
            // Post-copy needs no dirty log.
            let once = *mode != ModeName::Postcopy || *tracker == Tracker::Bitmap;
            let chosen = args.mode.is_none_or(|chosen| chosen == *mode)
                && args.tracker.is_none_or(|chosen| chosen == *tracker);
            if once && chosen {
                let (account, pages) = move_guest(&args, mode.mode(), *tracker)
                    .map_err(|error| format!("{mode:?} with {tracker:?}: {error}"))?;
                print_row(*mode, *tracker, &account, pages);
            }
        }
    }
    Ok(())
}

fn print_row(mode: ModeName, tracker: Tracker, account: &Account, pages: u64) {
    let log = match mode {
        ModeName::Postcopy => "-".to_owned(),
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

/// Moves a guest that runs, and checks it where it arrives. Returns how many pages it has checked.
fn move_guest(args: &Args, mode: Mode, tracker: Tracker) -> Result<(Account, u64)> {
    let console = Console::default();
    let empty = || Machine::new(args.cpus, console.clone(), false);
    let mut machine = Machine::new(args.cpus, console.clone(), tracker == Tracker::Ring)?;
    let command_line = format!("{COMMAND_LINE} hk.threads={}", args.cpus);
    machine.boot(&args.kernel, &command_line)?;
    let check = GuestCheck::before_move(&machine, &console)?;
    if args.refuse_first {
        let mut source = Source::new(machine, tracker);
        let mut destination = Destination::new(empty()?);
        destination.refuse_state();
        match run_engines(&mut source, &mut destination, mode) {
            Err(error) if error.to_string().contains(REFUSED) => {}
            Err(error) => return Err(error),
            Ok(_) => return Err("the destination has not refused the device state".into()),
        }
        machine = source.into_machine();
        check.after_move(&machine, &console)?;
    }
    let mut source = Source::new(machine, tracker);
    let mut destination = Destination::new(empty()?);
    let account = run_engines(&mut source, &mut destination, mode)?;
    let pages = check.after_move(&destination.into_machine(), &console)?;
    Ok((account, pages))
}
