//! A machine whose owner, another program, gives QEMU a named pipe as its incoming stream: libvirt,
//! which restores a domain from a file. hikkoshi writes the stream.
//!
//! The owner keeps the monitor for itself until the stream has ended. So:
//!
//! * The *beginning* of the stream is written at once. QEMU waits for the rest.
//! * The RAM blocks are found by *marks*: the stream makes QEMU write a page of our choice to the
//!   beginning of each block, and that page is searched in QEMU's memory (`marks.rs`).
//! * The device state is written without the stream's *end*. QEMU has loaded it, but neither opens
//!   the images nor runs the guest (`pipe.rs` shows how that is known). Until then everything can
//!   be cancelled.
//! * From that time on QEMU itself holds the pipe open (`hold.rs`): if this program is killed,
//!   another one finds the machine as it was.
//! * After *commit* the end is written. The owner runs the guest.

mod attach;
pub(super) mod disks;
mod error;
mod hold;
mod loaded;
mod marks;
mod pipe;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hikkoshi_engine::CancelFlag;
use hikkoshi_linux::Process;
use hikkoshi_wire::GuestDescription;

pub use self::attach::PipedGuest;
pub(super) use self::attach::end;
pub use self::error::PipedError;
pub use self::loaded::{HasRunError, LoadedGuest};
pub use self::pipe::StreamPipe;
use super::error::LOAD_TIMEOUT;
use super::written::Written;
use crate::stream::{self, StreamBlock, StreamError};

/// How long QEMU may take to load the beginning of the stream, which it does within milliseconds.
const BEGIN_TIMEOUT: Duration = Duration::from_secs(60);

/// QEMU reads at most this much of a stream ahead (`IO_BUF_SIZE` in `migration/qemu-file.c`, 7.2 to
/// 10.0), twice.
const FILLER_BYTES: usize = 2 * (32 << 10);

/// A network card of the machine, as its owner knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedCard {
    /// Its name in QEMU.
    pub name: String,
    /// The address that it was configured with.
    pub address: [u8; 6],
    /// The tap device that it is connected to.
    pub interface: Option<String>,
}

/// Why a machine's owner does not run the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotRun {
    /// What went wrong, as text.
    pub what: String,
    /// Whether it is certain that the guest has never run: QEMU has refused to run it, or was ended
    /// before.
    pub never_ran: bool,
}

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
    pipe: StreamPipe,
    pub(super) owner: Box<dyn MachineOwner>,
    process: Arc<Process>,
    loaded: LoadedGuest,
    /// Whether this program has written the end: the owner may run the guest.
    pub(super) ended: bool,
}

/// A machine of which nothing is known but its process.
#[derive(Debug)]
pub struct PipedMachine {
    /// QEMU.
    pub process: Arc<Process>,
    /// Its incoming stream. The owner has read what is its own, and QEMU reads the rest.
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
        let main = smallest(description)?;
        let mut marks = marks::Marks::new(description, &main.name);
        let mut part = stream::beginning(&description.machine)?;
        let deadline = Instant::now() + BEGIN_TIMEOUT;
        let (owner, process) = (&mut self.owner, &self.process);
        let mut check = || {
            check(
                &mut **owner,
                process,
                cancel,
                deadline,
                "the stream's beginning",
            )
        };
        loop {
            part.extend(marks.section()?);
            self.pipe.write(&part, &mut check)?;
            loop {
                match marks.look(process) {
                    Ok(true) => break,
                    Ok(false) => {}
                    Err(error) if error.is_of_earlier_program() => {}
                    Err(error) => return Err(error),
                }
                check()?;
                std::thread::sleep(Duration::from_millis(1));
            }
            if let Some(addresses) = marks.addresses(process)? {
                return Ok(addresses);
            }
            // Of another length each time: copies of the next pages are elsewhere in the buffer.
            part = stream::filler(&main, FILLER_BYTES + 1000 * marks.sections())?;
        }
    }

    pub(super) fn into_stream(self) -> PipedStream {
        PipedStream {
            pipe: self.pipe,
            owner: self.owner,
            process: self.process,
            loaded: LoadedGuest::default(),
            ended: false,
        }
    }
}

impl PipedStream {
    /// The stream of a machine that another program has begun to create, if QEMU still reads it.
    pub(super) fn reopen(
        path: &Path,
        process: &Arc<Process>,
        owner: Box<dyn MachineOwner>,
    ) -> Option<Self> {
        let mut check = || Err(io::Error::from(io::ErrorKind::BrokenPipe));
        let mut pipe = StreamPipe::open(path, &mut check).ok()?;
        let open = hold::descriptors(process, &pipe).unwrap_or_default();
        if open.is_empty() {
            pipe.keep();
            return None;
        }
        Some(Self {
            pipe,
            owner,
            process: Arc::clone(process),
            loaded: LoadedGuest::default(),
            ended: false,
        })
    }

    /// Leaves everything to another program.
    pub(super) fn keep(&mut self) {
        self.pipe.keep();
    }

    /// The machine's network cards.
    pub(super) fn cards(&self) -> Vec<OwnedCard> {
        self.owner.cards()
    }

    /// Whether the owner still waits for the rest of the stream.
    pub(super) fn check_receiving(&mut self) -> Result<(), PipedError> {
        match self.owner.failure() {
            Some(what) => Err(PipedError::Owner { what }),
            None => Ok(()),
        }
    }

    /// Lets QEMU load a stream that [`stream::whole`] has made, but for its end. An error has what
    /// QEMU wrote meanwhile.
    pub(super) fn load(
        &mut self,
        state: &[u8],
        description: &GuestDescription,
        cancel: &CancelFlag,
    ) -> Result<(), PipedError> {
        let log = self.owner.log().and_then(Written::from_end_of);
        let written = log.or_else(|| Written::from_now_on(&self.process));
        self.load_all(state, description, cancel)
            .map_err(|error| match self.process.is_alive() {
                true => error,
                false => error.with(written.and_then(|written| written.text_soon())),
            })
    }

    fn load_all(
        &mut self,
        state: &[u8],
        description: &GuestDescription,
        cancel: &CancelFlag,
    ) -> Result<(), PipedError> {
        let sections = stream::sections(state)?;
        self.loaded = LoadedGuest::of(sections);
        let filler = stream::filler(&smallest(description)?, FILLER_BYTES)?;
        let began = Instant::now();
        let deadline = began + LOAD_TIMEOUT;
        let (owner, process) = (&mut self.owner, &self.process);
        let mut check = || check(&mut **owner, process, cancel, deadline, "the device state");
        self.pipe.write(sections, &mut check)?;
        // While QEMU loads them.
        hold::open(process, &self.pipe)?;
        self.pipe.write(&filler, &mut check)?;
        self.pipe.wait_until_read(&mut check)?;
        tracing::debug!(took = ?began.elapsed(), "the device state is loaded");
        Ok(())
    }

    /// Lets QEMU complete the stream, and waits until the owner runs the guest.
    pub(super) fn end(&mut self, give_up: &CancelFlag) -> Result<Instant, PipedError> {
        let deadline = Instant::now() + LOAD_TIMEOUT;
        let (owner, process) = (&mut self.owner, &self.process);
        let answers = owner.check_answers();
        let answers =
            answers.map_err(|what| PipedError::NotEnded(Box::new(PipedError::Owner { what })));
        answers?;
        let mut check = || check(&mut **owner, process, give_up, deadline, "the stream's end");
        // Less than a page is written as a whole or not at all (pipe(7)).
        let written = check().and_then(|()| self.pipe.write(&stream::tail(), &mut check));
        written.map_err(|source| PipedError::NotEnded(Box::new(source)))?;
        self.ended = true;
        let finished = self.owner.finish(&self.loaded, give_up);
        finished.map_err(PipedError::NotRun)
    }

    /// Closes QEMU's own descriptor of the pipe, and removes the pipe.
    pub(super) fn remove(&mut self) {
        if !self.process.has_lost_memory() {
            hold::close(&self.process, &self.pipe);
        }
        self.pipe.remove();
    }

    /// Where the pipe is, for reattaching.
    pub(super) fn path(&self) -> PathBuf {
        self.pipe.path().to_owned()
    }
}

/// Whether it makes sense to wait for QEMU any longer.
fn check(
    owner: &mut dyn MachineOwner,
    process: &Process,
    cancel: &CancelFlag,
    deadline: Instant,
    part: &'static str,
) -> Result<(), PipedError> {
    if let Some(what) = owner.failure() {
        return Err(PipedError::Owner { what });
    }
    if !process.is_alive() {
        // The owner has what QEMU has reported, and notices the end soon.
        let until = Instant::now() + Duration::from_secs(2);
        while Instant::now() < until {
            if let Some(what) = owner.failure() {
                return Err(PipedError::Owner { what });
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        return Err(PipedError::Ended { part });
    }
    if cancel.is_cancelled() {
        return Err(PipedError::Cancelled { part });
    }
    if Instant::now() > deadline {
        return Err(PipedError::TimedOut { part });
    }
    Ok(())
}

/// The block with the shortest name of those that are never resized: main memory.
fn smallest(description: &GuestDescription) -> Result<StreamBlock, StreamError> {
    let main = description
        .blocks
        .iter()
        .filter(|block| !block.guest.is_empty());
    let block = main.min_by_key(|block| block.id.len());
    let block = block.ok_or(StreamError::NoEnd)?;
    Ok(StreamBlock {
        name: block.id.clone(),
        used: block.bytes,
    })
}

impl From<io::Error> for PipedError {
    fn from(source: io::Error) -> Self {
        Self::Pipe { source }
    }
}
