//! Examines the guests: `check`, `dirty-rate` and `estimate`, several guests at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use clap::Parser;
use hikkoshi_engine::{CancelFlag, Compression, Mode, SourceOptions};
use hikkoshi_estimate::Span;
use hikkoshi_link::Address;
use hikkoshi_pages::PAGE_BYTES;
use hikkoshi_qemu::OfferedMachine;

use super::guests::NamedGuest;
use crate::args::{Args, Command, Evacuate, Migrate};
use crate::commands::check::{self, CheckedGuestOf};
use crate::commands::cluster_guest;
use crate::commands::estimate::{Request, estimate};
use crate::output::exit::{Exit, ExitStatus};
use crate::output::reason::Reason;

/// Guests that are measured at a time.
const AT_ONCE: usize = 8;

/// How much of one vCPU's time measuring a guest may cost, as for `estimate`.
const MAX_COST: f64 = 0.02;

/// A rate for estimates before the line is known: they are not used.
const ANY_RATE: u64 = 125_000_000;

/// How long a move prepares, s, as long as no destination was asked for the guest, and for a
/// domain, for which a destination starts nothing when it is asked.
const PREPARE: Span = Span {
    low: 0.15,
    likely: 0.5,
    high: 1.5,
};

/// A guest that was examined.
#[derive(Debug)]
pub(super) struct Inspected {
    pub(super) guest: NamedGuest,
    /// What the planner knows of it.
    pub(super) measured: hikkoshi_evacuation::Guest,
    /// What a destination compares; `None`: it is not compared before it is moved.
    pub(super) offer: Option<OfferedMachine>,
}

/// A guest that is not moved.
#[derive(Debug)]
pub(super) enum NotInspected {
    /// It has moved before.
    Moved,
    /// It cannot be moved, or examined.
    Refused(String),
}

/// The options of the moves, without the mode.
pub(super) fn migrate_options(args: &Evacuate, guest: &NamedGuest) -> Result<Migrate, Exit> {
    let nowhere = Address::Tcp("localhost:7000".to_owned());
    let words = args.migrate_words(&guest.words(), &guest.name, &nowhere, Mode::Hybrid);
    // Those that each run adds.
    let own = ["--json", "-", "--progress", "none", "--bandwidth", "none"];
    let words = std::iter::once(OsString::from("hikkoshi"))
        .chain(words)
        .chain(own.map(Into::into));
    match Args::try_parse_from(words).map(|parsed| parsed.command) {
        Ok(Command::Migrate(migrate)) => Ok(*migrate),
        Ok(_) => Err(usage("--migrate-option is not one of 'migrate'")),
        Err(error) => Err(usage(&format!(
            "with these options 'migrate' says: {}",
            error.to_string().trim()
        ))),
    }
}

fn usage(what: &str) -> Exit {
    Exit::new(ExitStatus::Usage, Reason::Usage, what).with("nothing was tried")
}

/// The engine's options of the moves. Mode and bandwidth are not used.
pub(super) fn engine_options(migrate: &Migrate) -> SourceOptions {
    migrate.engine_options(&migrate.options())
}

/// Examines the guests, and has an answer for each, in their order.
pub(super) fn inspect_all(
    args: &Evacuate,
    guests: &[NamedGuest],
    cancel: &CancelFlag,
) -> Vec<Result<Inspected, NotInspected>> {
    let next = AtomicUsize::new(0);
    let results: Mutex<BTreeMap<usize, _>> = Mutex::new(BTreeMap::new());
    let lock = || results.lock().unwrap_or_else(PoisonError::into_inner);
    let work = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(guest) = guests.get(number) else {
                return;
            };
            let result = inspect(args, guest, cancel);
            lock().insert(number, result);
        }
    };
    thread::scope(|scope| {
        for _ in 1..AT_ONCE.min(guests.len()) {
            let thread = thread::Builder::new().name("inspect".into());
            if thread.spawn_scoped(scope, work).is_err() {
                // The others do it.
                break;
            }
        }
        work();
    });
    (0..guests.len())
        .map(|number| {
            let missing = || Err(NotInspected::Refused("it was not examined".to_owned()));
            lock().remove(&number).unwrap_or_else(missing)
        })
        .collect()
}

fn inspect(
    args: &Evacuate,
    guest: &NamedGuest,
    cancel: &CancelFlag,
) -> Result<Inspected, NotInspected> {
    let refused = |exit: Exit| NotInspected::Refused(exit.text());
    let migrate = migrate_options(args, guest).map_err(refused)?;
    if !migrate.allow.allow_managed {
        let run = args.journals.path();
        cluster_guest::refuse(&run, guest.qmp(), &guest.name).map_err(refused)?;
    }
    let domain = guest.domain();
    let of = || CheckedGuestOf {
        domain: &domain,
        qmp: guest.qmp(),
        allow: &migrate.allow,
        disks: migrate.disks.selection(),
    };
    let checked = check::check(&of()).map_err(refused)?;
    if checked
        .obstacles
        .iter()
        .any(|obstacle| obstacle.has_moved())
    {
        return Err(NotInspected::Moved);
    }
    if let Some(error) = &checked.refused_disks {
        return Err(NotInspected::Refused(
            error_reporter::Report::new(error).to_string(),
        ));
    }
    let request = Request {
        guest: of(),
        domain: &domain,
        qmp: guest.qmp(),
        remote: None,
        allow_cpu_mismatch: migrate.allow_cpu_mismatch,
        round_trip: None,
        options: SourceOptions {
            bandwidth: Some(ANY_RATE),
            // Of all methods, to say what compression would change.
            compression: Compression::Auto,
            ..engine_options(&migrate)
        },
        seconds: args.seconds,
        max_cost: MAX_COST,
        probe_limit: 0,
    };
    let estimated = estimate(&request, cancel).map_err(|why| refused(why.into()))?;
    let (mut modes, mut obstacles) = (Vec::new(), Vec::new());
    for mode in &estimated.modes {
        if mode.obstacles.is_empty() {
            modes.push(mode.prediction.mode);
        }
        for obstacle in &mode.obstacles {
            if !obstacles.contains(obstacle) {
                obstacles.push(obstacle.clone());
            }
        }
    }
    // Of another model, the destination compares.
    let may_use_all = checked.guest.accelerator == "kvm"
        && ["host", "max"].contains(&checked.guest.processor.as_str())
        && !migrate.allow_cpu_mismatch;
    Ok(Inspected {
        guest: guest.clone(),
        measured: hikkoshi_evacuation::Guest {
            name: guest.name.clone(),
            memory: estimated.guest.pages * PAGE_BYTES,
            features: match may_use_all {
                true => own_features(),
                false => BTreeSet::new(),
            },
            measured: estimated.guest,
            compressed: estimated.compressed,
            modes,
            obstacles,
            prepare: PREPARE,
        },
        // A destination with libvirt would create a domain to compare it.
        offer: checked.offer.filter(|offer| offer.domain.is_none()),
    })
}

/// The features of this host's first processor, as the kernel names them.
fn own_features() -> BTreeSet<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = text
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.trim() == "flags");
    flags.map_or_else(BTreeSet::new, |(_, flags)| {
        flags.split_whitespace().map(str::to_owned).collect()
    })
}
