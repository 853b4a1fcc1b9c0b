//! A guest made of a thread and a memfd, moved by each mode within one process.
//!
//! This is the smallest virtual-machine monitor that the engine can serve: [`guest`] is the
//! machine, [`source`] and [`destination`] implement the engine's two traits for it. Source and
//! destination are two threads here, which talk over loopback; on two hosts the code is the same.
//!
//! It needs Linux 6.7 and the right to use userfaultfd (root, or `vm.unprivileged_userfaultfd=1`):
//!
//! ```text
//! cargo run --release --package hikkoshi-in-memory-guest
//! ```

#![allow(clippy::print_stdout)] // The table is what the program is for.

mod destination;
mod guest;
mod source;

use std::error::Error;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use hikkoshi_engine::report::Silent;
use hikkoshi_engine::{
    Account, CancelFlag, DestinationOptions, MigrateControl, Mode, ReceiveControl, SourceControl,
    SourceOptions, migrate, receive,
};
use hikkoshi_handover::Unrecorded;
use hikkoshi_link::{Address, Listener};

use crate::destination::Destination;
use crate::guest::{Checked, Machine, Memory};
use crate::source::Source;

/// Long enough for the guest to write some hundred pages.
const A_WHILE: Duration = Duration::from_millis(100);

fn main() -> Result<(), Box<dyn Error>> {
    println!("mode      rounds  pre-copied  urgent  background  downtime  pages checked  wrong");
    let mut wrong = 0;
    for mode in [Mode::Precopy, Mode::Postcopy, Mode::Hybrid] {
        let (account, checked) = move_guest(mode)?;
        println!(
            "{:<8}  {:>6}  {:>10}  {:>6}  {:>10}  {:>5.1} ms  {:>13}  {:>5}",
            format!("{mode:?}").to_lowercase(),
            account.rounds,
            account.pages.precopy,
            account.pages.urgent,
            account.pages.background,
            account.downtime_ms.unwrap_or_default(),
            checked.pages,
            checked.wrong,
        );
        wrong += checked.wrong;
    }
    if wrong > 0 {
        return Err(format!("{wrong} pages are wrong at the destination").into());
    }
    Ok(())
}

/// Moves a guest that runs, and checks it where it arrives.
fn move_guest(mode: Mode) -> Result<(Account, Checked), Box<dyn Error>> {
    let mut source = Source::new(Machine::boot(Memory::new()?)?);
    let mut destination = Destination::new(Machine::empty(Memory::new()?));
    thread::sleep(A_WHILE);

    let listener = Listener::bind(&"127.0.0.1:0".parse::<Address>()?)?;
    let remote = listener.address().clone().into();
    let account = thread::scope(|scope| {
        let receiving = scope.spawn(|| {
            let control = ReceiveControl {
                cancel: CancelFlag::new(),
                observer: Arc::new(Silent),
                journal: Arc::new(Unrecorded),
            };
            receive(
                &mut destination,
                &listener,
                &DestinationOptions::default(),
                &control,
            )
        });
        let options = SourceOptions {
            mode,
            ..SourceOptions::default()
        };
        let control = MigrateControl {
            cancel: CancelFlag::new(),
            control: SourceControl::new(),
            observer: Arc::new(Silent),
            journal: Arc::new(Unrecorded),
        };
        let account = migrate(&mut source, &remote, &options, &control)?;
        receiving
            .join()
            .map_err(|_| "the destination's thread panicked")??;
        Ok::<_, Box<dyn Error>>(account)
    })?;

    thread::sleep(A_WHILE);
    Ok((account, destination.into_machine().check()?))
}
