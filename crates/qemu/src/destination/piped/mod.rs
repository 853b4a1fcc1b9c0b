//! A machine whose owner, another program, gives QEMU a named pipe as its incoming stream: libvirt,
//! which restores a domain from a file. hikkoshi writes the stream.
//!
//! The owner keeps the monitor for itself until the stream has ended. QEMU reads the named pipe
//! itself, or a pipe of a helper that has read the beginning (`helper.rs`). So:
//!
//! * The *beginning* of the stream is written at once. QEMU waits for the rest.
//! * The RAM blocks are found by *marks*: the stream makes QEMU write a page of our choice to the
//!   beginning of each block, and that page is searched in QEMU's memory (`marks.rs`).
//! * Behind everything that QEMU is to load comes *filler*, more than QEMU reads ahead. When that
//!   has been read from the pipe, QEMU has loaded what is before it. How far it reads ahead is
//!   known from its source only ([`FILLER_BYTES`]).
//! * The device state is written without the stream's *end*. QEMU has loaded it, but neither opens
//!   the images nor runs the guest. Until then everything can be cancelled.
//! * From that time on QEMU itself holds the pipe open (`hold.rs`): if this program is killed,
//!   another one finds the machine as it was.
//! * After *commit* the end is written. The owner runs the guest.

mod attach;
pub(super) mod disks;
mod error;
mod held_pipe;
mod helper;
mod hold;
mod loaded;
mod marks;
mod pipe;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use error_reporter::Report;
use hikkoshi_engine::CancelFlag;
use hikkoshi_linux::Process;
use hikkoshi_wire::GuestDescription;

pub use self::attach::PipedGuest;
pub use self::error::{NotRun, PipedError};
pub use self::loaded::{HasRunError, LoadedGuest};
pub use self::pipe::StreamPipe;
use super::load_timeout::LOAD_TIMEOUT;
use super::qemu_output::Written;
use crate::network::OwnedCard;
use crate::stream::{self, StreamError};

/// How long QEMU may take to load the beginning of the stream, which it does within milliseconds.
const BEGIN_TIMEOUT: Duration = Duration::from_secs(60);

/// How much filler shows that everything before it was loaded: twice what QEMU reads of a stream
/// ahead (`IO_BUF_SIZE` in `migration/qemu-file.c`, 7.2 to 11.1).
const FILLER_BYTES: u32 = 2 * (32 << 10);

/// How long QEMU may take to end when it has closed the pipe, and its owner to report why. The
/// guest may be paused at the source meanwhile.
const REPORT_TIMEOUT: Duration = Duration::from_secs(2);

/// How often to look for that.
const EXPLAIN_INTERVAL: Duration = Duration::from_millis(2);

/// The program that has started the machine.
pub trait MachineOwner: std::fmt::Debug + Send {
    /// Why it does not start or restore the machine any more, if so.
    fn failure(&mut self) -> Option<String>;

    /// The machine's network cards.
    fn cards(&self) -> Vec<OwnedCard>;

    /// The file in which it keeps what QEMU writes to its standard error. `None`: there is none, or
    /// it cannot be read.
    fn log(&self) -> Option<File> {
        None
    }

    /// Checks that it answers, before the stream is ended: afterwards only it can run the guest,
    /// which is paused on both sides. Does not wait for long.
    ///
    /// # Errors
    ///
    /// Why it will not run the guest; for people.
    fn check_answers(&mut self) -> Result<(), String> {
        Ok(())
    }

    /// Waits until it runs the guest, now that the stream has ended, and returns when that was.
    /// `loaded` is what QEMU has loaded before. Ends early once `give_up` is set.
    ///
    /// # Errors
    ///
    /// It does not run the guest.
    fn finish(&mut self, loaded: &LoadedGuest, give_up: &CancelFlag) -> Result<Instant, NotRun>;

    /// The machine was ended. Waits, for a limited time, until its owner has noticed.
    fn forget(&mut self);
}

/// The incoming stream of a machine.
#[derive(Debug)]
pub(super) struct PipedStream {
    machine: PipedMachine,
    loaded: LoadedGuest,
    /// Whether this program has written the end: the owner may run the guest.
    pub(super) ended: bool,
}

/// A machine of which nothing is known but its process.
#[derive(Debug)]
pub struct PipedMachine {
    /// QEMU.
    pub process: Arc<Process>,
    /// Its incoming stream ([`StreamPipe::reaches`]). The owner has read what is its own.
    pub pipe: StreamPipe,
    /// What has started it.
    pub owner: Box<dyn MachineOwner>,
}

impl PipedMachine {
    /// Writes the beginning of the stream and finds where each RAM block of the guest begins in
    /// QEMU's address space.
    pub(super) fn begin(
        &mut self,
        description: &GuestDescription,
        cancel: &CancelFlag,
    ) -> Result<Vec<u64>, PipedError> {
        let main = main_memory(description)?;
        let mut marks = marks::Marks::new(description, main);
        let mut part = stream::beginning(&description.machine)?;
        let wait = Wait {
            cancel,
            deadline: Instant::now() + BEGIN_TIMEOUT,
            part: "the stream's beginning",
        };
        loop {
            part.extend(marks.section()?);
            // Of another length each time: copies of the next pages are elsewhere in the buffer.
            let filler = FILLER_BYTES + 1000 * marks.sections();
            part.extend(stream::filler(filler));
            self.write(&part, &wait)?;
            loop {
                let (owner, process) = (&mut *self.owner, &self.process);
                match marks.look(process, &mut || wait.check(owner, process)) {
                    Ok(true) => break,
                    Ok(false) => {}
                    Err(error) if error.is_of_earlier_program() => {}
                    Err(error) => return Err(self.explain(error, wait.part)),
                }
                let checked = wait.check(&mut *self.owner, &self.process);
                checked.map_err(|error| self.explain(error, wait.part))?;
                std::thread::sleep(Duration::from_millis(1));
            }
            if let Some(addresses) = marks.addresses(&self.process)? {
                return Ok(addresses);
            }
            part.clear();
        }
    }

    fn write(&mut self, bytes: &[u8], wait: &Wait<'_>) -> Result<(), PipedError> {
        let (owner, process) = (&mut *self.owner, &self.process);
        let written = self.pipe.write(bytes, &mut || wait.check(owner, process));
        written.map_err(|error| self.explain(error, wait.part))
    }

    /// Waits until the pipe was read.
    fn wait_until_read(&mut self, wait: &Wait<'_>) -> Result<(), PipedError> {
        let (owner, process) = (&mut *self.owner, &self.process);
        let read = self
            .pipe
            .wait_until_read(&mut || wait.check(owner, process));
        read.map_err(|error| self.explain(error, wait.part))
    }

    /// The reason of its owner, which has what QEMU has reported, if QEMU has ended.
    fn explain(&mut self, mut error: PipedError, part: &'static str) -> PipedError {
        let until = Instant::now() + REPORT_TIMEOUT;
        // QEMU closes the pipe before it ends.
        let is_closed = match &error {
            PipedError::Pipe { source } => source.kind() == io::ErrorKind::BrokenPipe,
            PipedError::NotOpen { .. } | PipedError::Hold(_) => true,
            _ => false,
        };
        if is_closed && self.ends_before(until) {
            error = PipedError::Ended { part };
        }
        if !matches!(error, PipedError::Ended { .. }) {
            return error;
        }
        self.close();
        loop {
            if let Some(what) = self.owner.failure() {
                return PipedError::Owner { what };
            }
            if Instant::now() >= until {
                return error;
            }
            std::thread::sleep(EXPLAIN_INTERVAL);
        }
    }

    fn ends_before(&self, until: Instant) -> bool {
        // The kernel may need long to free much memory afterwards.
        while !self.process.has_lost_memory() {
            if Instant::now() >= until {
                return false;
            }
            std::thread::sleep(EXPLAIN_INTERVAL);
        }
        true
    }

    /// Closes the pipe, in QEMU, too.
    fn close(&mut self) {
        if !self.process.has_lost_memory()
            && let Err(error) = hold::close(&self.process, &self.pipe)
        {
            let (error, pid) = (Report::new(&error), self.process.pid());
            tracing::warn!(%error, pid, "closing the pipe of the device state in QEMU");
        }
        self.pipe.close();
    }

    /// Ends the machine, whose guest has never run here, so that its owner forgets it.
    pub(super) fn end(&mut self) {
        if self.process.is_alive()
            && let Err(error) = self.process.kill()
        {
            tracing::warn!(%error, pid = self.process.pid(), "ending a QEMU that is not needed");
        }
        self.close();
        self.owner.forget();
    }

    pub(super) fn into_stream(self) -> PipedStream {
        PipedStream {
            machine: self,
            loaded: LoadedGuest::default(),
            ended: false,
        }
    }
}

impl PipedStream {
    /// The stream of a machine that another program has begun to create, if it is still read.
    pub(super) fn reopen(
        path: &Path,
        process: &Arc<Process>,
        owner: Box<dyn MachineOwner>,
    ) -> Option<Self> {
        let pipe = StreamPipe::held_by(process, path);
        let pipe = pipe.inspect_err(|error| {
            tracing::warn!(%error, pid = process.pid(), "looking for the incoming stream of QEMU");
        });
        let machine = PipedMachine {
            process: Arc::clone(process),
            pipe: pipe.ok()??,
            owner,
        };
        Some(machine.into_stream())
    }

    /// Leaves everything to another program.
    pub(super) fn keep(&mut self) {
        self.machine.pipe.keep();
    }

    /// The machine's network cards.
    pub(super) fn cards(&self) -> Vec<OwnedCard> {
        self.machine.owner.cards()
    }

    /// Whether the owner still waits for the rest of the stream.
    pub(super) fn check_receiving(&mut self) -> Result<(), PipedError> {
        match self.machine.owner.failure() {
            Some(what) => Err(PipedError::Owner { what }),
            None => Ok(()),
        }
    }

    /// Lets QEMU load a stream that [`stream::whole`] has made, but for its end. An error has what
    /// QEMU wrote meanwhile.
    pub(super) fn load(&mut self, state: &[u8], cancel: &CancelFlag) -> Result<(), PipedError> {
        let log = self.machine.owner.log().and_then(Written::from_end_of);
        let written = log.or_else(|| Written::from_now_on(&self.machine.process));
        self.load_all(state, cancel)
            .map_err(|error| match self.machine.process.has_lost_memory() {
                true => error.with(written.and_then(|written| written.text_soon())),
                false => error,
            })
    }

    fn load_all(&mut self, state: &[u8], cancel: &CancelFlag) -> Result<(), PipedError> {
        let sections = stream::sections(state)?;
        self.loaded = LoadedGuest::of_sections(sections);
        let began = Instant::now();
        let wait = Wait {
            cancel,
            deadline: began + LOAD_TIMEOUT,
            part: "the device state",
        };
        let machine = &mut self.machine;
        machine.write(sections, &wait)?;
        // While QEMU loads them.
        let held = hold::open(&machine.process, &machine.pipe);
        held.map_err(|error| machine.explain(error, wait.part))?;
        machine.write(&stream::filler(FILLER_BYTES), &wait)?;
        machine.wait_until_read(&wait)?;
        tracing::debug!(took = ?began.elapsed(), "the device state is loaded");
        Ok(())
    }

    /// Lets QEMU complete the stream, and waits until the owner runs the guest.
    pub(super) fn end(&mut self, give_up: &CancelFlag) -> Result<Instant, PipedError> {
        let wait = Wait {
            cancel: give_up,
            deadline: Instant::now() + LOAD_TIMEOUT,
            part: "the stream's end",
        };
        self.write_end(&wait)
            .map_err(|source| PipedError::NotEnded(Box::new(source)))?;
        self.ended = true;
        let finished = self.machine.owner.finish(&self.loaded, give_up);
        finished.map_err(PipedError::NotRun)
    }

    /// Writes the end, at which QEMU completes the stream.
    fn write_end(&mut self, wait: &Wait<'_>) -> Result<(), PipedError> {
        let machine = &mut self.machine;
        let answers = machine.owner.check_answers();
        answers.map_err(|what| PipedError::Owner { what })?;
        let checked = wait.check(&mut *machine.owner, &machine.process);
        checked.map_err(|error| machine.explain(error, wait.part))?;
        // Less than a page is written as a whole or not at all (pipe(7)).
        machine.write(&stream::tail(), wait)
    }

    /// Ends the machine, whose guest will not run here, unless this program has let its owner run
    /// it. `never_ran`: it is certain that it has not.
    pub(super) fn end_unless_it_runs(&mut self, never_ran: bool) {
        if !self.ended || never_ran {
            self.machine.end();
        }
    }

    /// Closes QEMU's own descriptor of the pipe, and removes the named pipe.
    pub(super) fn remove(&mut self) {
        self.machine.close();
        self.machine.pipe.remove();
    }

    /// Where the named pipe is, for reattaching.
    pub(super) fn path(&self) -> PathBuf {
        self.machine.pipe.path().to_owned()
    }
}

/// A wait for QEMU.
#[derive(Debug)]
struct Wait<'a> {
    cancel: &'a CancelFlag,
    deadline: Instant,
    /// What QEMU is loading.
    part: &'static str,
}

impl Wait<'_> {
    /// Whether it makes sense to wait any longer.
    fn check(&self, owner: &mut dyn MachineOwner, process: &Process) -> Result<(), PipedError> {
        let part = self.part;
        if let Some(what) = owner.failure() {
            return Err(PipedError::Owner { what });
        }
        if !process.is_alive() {
            return Err(PipedError::Ended { part });
        }
        if self.cancel.is_cancelled() {
            return Err(PipedError::Cancelled { part });
        }
        if Instant::now() > self.deadline {
            return Err(PipedError::TimedOut { part });
        }
        Ok(())
    }
}

/// The name of a block of main memory.
fn main_memory(description: &GuestDescription) -> Result<&str, StreamError> {
    let mut main = description
        .blocks
        .iter()
        .filter(|block| !block.guest.is_empty());
    let block = main.next().ok_or(StreamError::NoEnd)?;
    Ok(&block.id)
}

impl From<io::Error> for PipedError {
    fn from(source: io::Error) -> Self {
        Self::Pipe { source }
    }
}
