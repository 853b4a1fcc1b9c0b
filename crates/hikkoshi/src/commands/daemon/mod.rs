//! `hikkoshi daemon`: one port for many guests.
//!
//! ```text
//! source ─▶ port ─▶ daemon ── (the connection, unread) ─▶ receiver, one process for each guest
//!                     ▲
//!                     ├─ hikkoshi invite: starts a receiver, returns its invitation
//!                     ├─ a source with a certificate: the same
//!                     └─ a host with a certificate: asks about this host
//! ```
//!
//! The daemon reads from each connection which invitation it belongs to, and passes it on to that
//! guest's receiver, which authenticates the source. It has no keys, except that of its own
//! certificate if it has one, and no state beyond the run folder: migrations continue while it
//! is restarted.

mod admission;
mod certificate_limits;
mod certified;
mod control;
mod delivery;
mod guest_journals;
mod inquiries;
mod leftovers;
mod open_files;
mod places;
mod receiver_processes;
mod receivers;
pub(crate) mod request;
mod resumption;
mod resumption_pauses;
mod withdrawal;

use std::net::TcpListener;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use error_reporter::Report;
use hikkoshi_engine::CancelFlag;
use hikkoshi_link::{Arrival, Front};
use hikkoshi_linux::{activated_sockets, notify_ready};

use self::certified::Certified;
use self::control::Control;
use self::delivery::Delivery;
use self::inquiries::Inquiries;
use self::open_files::OpenFiles;
use self::receiver_processes::ReceiverProcesses;
use self::receivers::Receivers;
use crate::args::Daemon;
use crate::commands::signals;
use crate::journal::{JournalFile, absolute};
use crate::output::exit::{Exit, ExitStatus};
use crate::output::reason::Reason;
use crate::output::streams;
use crate::security::{self, RenewedCertificate};

/// Connections that wait to be passed on.
const QUEUE: usize = 64;

/// How often to look for migrations that no process receives.
const SCAN_INTERVAL: Duration = Duration::from_secs(1);

/// How often to check for a signal.
const TICK: Duration = Duration::from_millis(100);

/// Guests at a time, unless `--max-guests` says otherwise.
const MAX_GUESTS: u16 = 64;

/// Runs until a signal.
pub(crate) fn run(args: &Daemon) -> Result<ExitStatus, Exit> {
    let cancel = &signals::cancel_on_signals()?;
    if args.certificates.tls_ca.is_some() && args.admit.is_none() {
        let what = "--tls-ca needs --admit FILE, which says what receives the guests \
                    of a certificate";
        return Err(Exit::new(ExitStatus::Usage, Reason::Usage, what));
    }
    let max_guests = usize::from(args.max_guests.unwrap_or(MAX_GUESTS));
    let open_files = OpenFiles::raise(max_guests)?;
    let certificate = RenewedCertificate::read(&args.certificates);
    let front = front(args)?;
    let front = match certificate {
        Some(certificate) => front.with_certificate(move || certificate.current()),
        None => front,
    };
    let advertised = security::advertised(args.address.advertise.as_ref(), front.address())?;
    let run = absolute(&args.journals.path());
    let receivers = open(&run).map_err(|error| {
        let what = format!("using the run folder: {}", Report::new(&error));
        Exit::new(ExitStatus::Usage, Reason::Journal, what)
    })?;
    let children =
        ReceiverProcesses::new(&run, receivers.clone(), advertised, max_guests, open_files);
    let stop = CancelFlag::new();
    let admit = args.admit.as_ref().map(|file| absolute(file));
    let per_certificate = args.max_guests_per_certificate.map(usize::from);
    let per_certificate = per_certificate.unwrap_or(max_guests.div_ceil(2));
    let admitted = admit.map(|file| Admitted {
        certified: Certified::new(&file, per_certificate, &children, &stop),
        inquiries: Inquiries::new(&file, per_certificate, &children, &stop),
    });
    let control = Control::bind(&request::socket(&run)).map_err(|error| {
        let what = format!("listening for 'hikkoshi invite': {}", Report::new(&error));
        Exit::new(ExitStatus::Usage, Reason::CannotListen, what)
    })?;
    if let Some(warning) = security::readable_key(&args.certificates) {
        streams::notice(&warning);
    }
    streams::notice(&format!(
        "receiving guests at {}: 'hikkoshi invite' on this host makes an invitation{}",
        front.address(),
        match &args.admit {
            Some(file) => format!(", and {} admits certificates", file.display()),
            None => String::new(),
        }
    ));
    if let Err(error) = notify_ready() {
        tracing::warn!(error = %Report::new(&error), "reporting to the service manager");
    }
    let (sender, arrivals) = sync_channel(QUEUE);
    thread::scope(|scope| {
        let served = thread::Builder::new()
            .name("dmn-accept".into())
            .spawn_scoped(scope, || {
                let served = front.serve(&sender, &stop);
                // The main thread notices that it has ended.
                drop(sender);
                served
            });
        let controlled = thread::Builder::new()
            .name("dmn-control".into())
            .spawn_scoped(scope, || control.serve(&children, &stop));
        let result = match (served, controlled) {
            (Ok(_), Ok(_)) => Lead {
                front: &front,
                receivers: &receivers,
                children: &children,
                admitted: admitted.as_ref(),
            }
            .run(&arrivals, cancel),
            (Err(error), _) | (_, Err(error)) => {
                let what = format!("starting a thread: {}", Report::new(&error));
                Err(Exit::new(ExitStatus::Usage, Reason::System, what))
            }
        };
        stop.cancel();
        result
    })
}

/// A receiver has the limit of open files again that its daemon has raised.
pub(crate) fn restore_open_files(limit: u64) -> Result<(), Exit> {
    open_files::restore(limit).map_err(|error| {
        let what = format!("setting the limit of open files: {}", Report::new(&error));
        Exit::new(ExitStatus::AtSource, Reason::System, what)
    })
}

fn open(run: &Path) -> std::io::Result<Receivers> {
    JournalFile::make_folder(run)?;
    Receivers::open(run)
}

/// The listener: the socket that systemd has passed, or a new one.
fn front(args: &Daemon) -> Result<Front, Exit> {
    let cannot = |what: &str, error: &std::io::Error| {
        let what = format!("{what}: {}", Report::new(error));
        Exit::new(ExitStatus::Usage, Reason::CannotListen, what)
    };
    let mut passed = activated_sockets()
        .map_err(|error| cannot("taking the socket that was passed (LISTEN_FDS)", &error))?;
    match (&args.listen, passed.pop()) {
        (None, Some(socket)) if passed.is_empty() => Front::at(TcpListener::from(socket))
            .map_err(|error| cannot("using the socket that was passed (LISTEN_FDS)", &error)),
        (Some(address), None) => {
            Front::bind(address).map_err(|error| cannot(&format!("listening at {address}"), &error))
        }
        (None, None) => Err(Exit::new(
            ExitStatus::Usage,
            Reason::Usage,
            "--listen ADDR is missing, and no socket was passed (systemd.socket(5))",
        )),
        _ => Err(Exit::new(
            ExitStatus::Usage,
            Reason::Usage,
            "several addresses to listen on: give --listen ADDR, or one socket (systemd.socket(5))",
        )),
    }
}

/// What the main thread needs.
struct Lead<'a> {
    front: &'a Front,
    receivers: &'a Receivers,
    children: &'a ReceiverProcesses,
    admitted: Option<&'a Admitted>,
}

/// Answers peers whose certificates are admitted.
struct Admitted {
    certified: Certified,
    inquiries: Inquiries,
}

impl Lead<'_> {
    /// Passes connections on until a signal.
    fn run(&self, arrivals: &Receiver<Arrival>, cancel: &CancelFlag) -> Result<ExitStatus, Exit> {
        let mut delivery = Delivery::new(self.front, self.receivers);
        let mut next_scan = Instant::now();
        while !cancel.is_cancelled() {
            if Instant::now() >= next_scan {
                self.children.look_after();
                delivery.forget_ended();
                next_scan = Instant::now() + SCAN_INTERVAL;
            }
            delivery.retry();
            match arrivals.recv_timeout(TICK) {
                Ok(Arrival::Link(connection)) => delivery.pass_on(connection),
                Ok(Arrival::Request(request)) => {
                    // Without a certificate, the front accepts no request.
                    if let Some(admitted) = self.admitted {
                        admitted.certified.answer(self.front, *request);
                    }
                }
                Ok(Arrival::Inquiry(inquiry)) => {
                    if let Some(admitted) = self.admitted {
                        admitted.inquiries.answer(self.front, *inquiry);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    let what = "accepting connections has failed";
                    return Err(Exit::new(ExitStatus::Usage, Reason::CannotListen, what));
                }
            }
        }
        streams::notice("the daemon ends; migrations continue, and another daemon takes them over");
        Ok(ExitStatus::Done)
    }
}
