//! A source measures the line to this destination. No guest is involved: what arrives is written
//! to memory of this process, acknowledged as in pre-copy, and discarded.
//!
//! One thread answers on the control link. A receiver for each background link does what a
//! receiver of pre-copy does: it reads a frame, writes its content to memory that is allocated for
//! it, and acknowledges it. So the rate that the source measures contains the cost of receiving.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

use error_reporter::Report;
use hikkoshi_link::{AcceptedLink, LinkError, LinkReader, LinkWriter, Stream, split};
use hikkoshi_linux::{CancelFlag, Priority, PriorityClass, sandbox_thread};
use hikkoshi_pages::PAGE_BYTES;
use hikkoshi_wire::{
    Frame, Limits, MAX_ECHOES, MAX_LINKS, MAX_PAGES_PER_FRAME, MigrationId, PROBE_PAGES, Role,
    ToDestination, ToSource, message_name,
};
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, memfd_create};

use crate::destination::options::DestinationOptions;
use crate::destination::page_receiver::ACK_EVERY;

/// The most bytes of one measurement: half a second of 100 Gbit/s.
const MAX_BYTES: u64 = 6 << 30;

/// The longest measurement.
const MAX_TIME: Duration = Duration::from_secs(15);

/// How long a wait on the control link does not look at the other links.
const TURN: Duration = Duration::from_millis(2);

/// A source that has asked to measure the line.
#[derive(Debug)]
pub(crate) struct ProbeRequest {
    pub(crate) stream: Arc<Stream>,
    pub(crate) reader: LinkReader,
    pub(crate) writer: LinkWriter,
    pub(crate) id: MigrationId,
    pub(crate) background_links: u16,
}

/// What was received in a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Probed {
    pub(crate) bytes: u64,
    pub(crate) time: Duration,
}

/// Serves the source until it ends the measurement, or has used up what it is allowed. `over` is
/// called before its control link is closed: it may begin a migration at once.
///
/// # Errors
/// Why the measurement failed, for people. The destination can wait for the next source.
pub(crate) fn serve(
    request: ProbeRequest,
    incoming: &Receiver<AcceptedLink>,
    options: &DestinationOptions,
    cancel: &CancelFlag,
    over: impl Fn(),
) -> Result<Probed, String> {
    let stream = Arc::clone(&request.stream);
    let served = serve_links(request, incoming, options, cancel);
    over();
    stream.shutdown();
    served
}

fn serve_links(
    request: ProbeRequest,
    incoming: &Receiver<AcceptedLink>,
    options: &DestinationOptions,
    cancel: &CancelFlag,
) -> Result<Probed, String> {
    let text = |error: LinkError| Report::new(&error).to_string();
    let ProbeRequest {
        stream: _stream,
        mut reader,
        mut writer,
        id,
        background_links,
    } = request;
    if !(1..=MAX_LINKS).contains(&background_links) {
        return Err(format!(
            "it requests {background_links} links to measure the line, and 1 to {MAX_LINKS} are \
             possible"
        ));
    }
    let begun = Instant::now();
    reader.set_deadline(Some(begun + MAX_TIME));
    writer
        .control(&ToSource::ProbeReady {
            bytes: MAX_BYTES,
            millis: u64::try_from(MAX_TIME.as_millis()).unwrap_or(u64::MAX),
        })
        .map_err(text)?;
    let stop = CancelFlag::new();
    let budget = Budget {
        received: AtomicU64::new(0),
        most: MAX_BYTES,
    };
    thread::scope(|scope| {
        let mut links: Vec<Option<Arc<Stream>>> = (0..background_links).map(|_| None).collect();
        let mut threads = Vec::new();
        let served = (|| {
            let mut echoes = 0;
            loop {
                if cancel.is_cancelled() {
                    return Err("this side is cancelled".to_owned());
                }
                match incoming.try_recv() {
                    Ok(link) => {
                        let Some(slot) = slot(&mut links, &link, id) else {
                            tracing::warn!(role = %link.role, peer = link.peer, "connection rejected: the line is being measured");
                            continue;
                        };
                        let receiver = ProbeReceiver::new(link, options, &stop)
                            .map_err(|error| Report::new(&error).to_string())?;
                        *slot = Some(Arc::clone(&receiver.stream));
                        let (budget, priority) = (&budget, options.priority);
                        let spawned = thread::Builder::new()
                            .name("dst-probe".into())
                            .spawn_scoped(scope, move || receiver.run(budget, priority));
                        threads.push(spawned.map_err(|error| Report::new(&error).to_string())?);
                    }
                    Err(TryRecvError::Empty) => {}
                    Err(TryRecvError::Disconnected) => {
                        return Err("the listener has ended".to_owned());
                    }
                }
                if begun.elapsed() > MAX_TIME {
                    return Err("it measured the line for too long".to_owned());
                }
                if !reader.is_ready(TURN).map_err(text)? {
                    continue;
                }
                match reader.control() {
                    Ok(ToDestination::Echo) if echoes < MAX_ECHOES => {
                        echoes += 1;
                        writer.control(&ToSource::Echoed).map_err(text)?;
                    }
                    Ok(ToDestination::Goodbye) | Err(LinkError::Closed) => return Ok(()),
                    Ok(_) => return Err("it broke the protocol while it measured the line".into()),
                    Err(error) => return Err(text(error)),
                }
            }
        })();
        let time = begun.elapsed();
        stop.cancel();
        links.iter().flatten().for_each(|stream| stream.shutdown());
        let mut failed = None;
        for thread in threads {
            // A panic was reported by the panic hook; there is nothing to add.
            failed = failed.or(thread.join().ok().and_then(Result::err));
        }
        served?;
        match failed {
            Some(why) => Err(why),
            None => Ok(Probed {
                bytes: budget.received.load(Ordering::Relaxed),
                time,
            }),
        }
    })
}

/// Where the link belongs; `None`: it is not a link of this measurement, or is there already.
fn slot<'a>(
    links: &'a mut [Option<Arc<Stream>>],
    link: &AcceptedLink,
    id: MigrationId,
) -> Option<&'a mut Option<Arc<Stream>>> {
    let Role::Background { index } = link.role else {
        return None;
    };
    let slot = links
        .get_mut(usize::from(index))
        .filter(|_| link.id == id)?;
    slot.is_none().then_some(slot)
}

/// What all links together may send.
struct Budget {
    received: AtomicU64,
    most: u64,
}

/// The receiving end of a background link.
struct ProbeReceiver {
    stream: Arc<Stream>,
    reader: LinkReader,
    acks: LinkWriter,
    memory: File,
}

impl ProbeReceiver {
    fn new(
        link: AcceptedLink,
        options: &DestinationOptions,
        stop: &CancelFlag,
    ) -> io::Result<Self> {
        link.stream.set_stall_timeout(options.stall_timeout)?;
        let stream = Arc::new(link.stream);
        let limits = Limits { pages: PROBE_PAGES };
        let (reader, acks) = split(&stream, limits, stop)?;
        let memory = File::from(memfd_create("hikkoshi-probe", MemfdFlags::CLOEXEC)?);
        memory.set_len(PROBE_PAGES * PAGE_BYTES)?;
        Ok(Self {
            stream,
            reader,
            acks,
            memory,
        })
    }

    /// Receives until the link is closed. An error: the source sends something else, or too much.
    fn run(mut self, budget: &Budget, priority: Priority) -> Result<(), String> {
        priority.apply(PriorityClass::Background);
        sandbox_thread();
        let result = self.receive(budget);
        // A link that is closed, here or there, ends the measurement.
        match result {
            Err(Ended::Link(error)) if !matches!(error, LinkError::Protocol(_)) => Ok(()),
            Err(Ended::Link(error)) => Err(Report::new(&error).to_string()),
            Err(Ended::Memory(error)) => Err(format!(
                "writing what arrived to memory: {}",
                Report::new(&error)
            )),
            Err(Ended::TooMuch) => Err("it sent more than it may".to_owned()),
            Ok(never) => match never {},
        }
    }

    fn receive(&mut self, budget: &Budget) -> Result<std::convert::Infallible, Ended> {
        let mut buffer = vec![0; hikkoshi_pages::usize_from(MAX_PAGES_PER_FRAME * PAGE_BYTES)];
        let mut acked = 0;
        loop {
            let before = self.reader.received();
            match self.reader.frame()? {
                frame @ Frame::Pages { range } => {
                    // The decoder limits a frame to the size of the buffer.
                    let content = buffer
                        .get_mut(..frame.payload_len())
                        .ok_or(Ended::TooMuch)?;
                    self.reader.payload(content)?;
                    let at = range.start().index() * PAGE_BYTES;
                    if at == 0 {
                        // So that memory is allocated again, as for a guest.
                        fallocate(
                            &self.memory,
                            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                            0,
                            PROBE_PAGES * PAGE_BYTES,
                        )
                        .map_err(|error| Ended::Memory(error.into()))?;
                    }
                    self.memory
                        .write_all_at(content, at)
                        .map_err(Ended::Memory)?;
                }
                Frame::Zeros { .. } => {}
                other => {
                    let what = format!("{} while the line is measured", message_name(&other));
                    return Err(Ended::Link(LinkError::Protocol(what)));
                }
            }
            let bytes = self.reader.received();
            let all = budget.received.fetch_add(bytes - before, Ordering::Relaxed);
            if all > budget.most {
                return Err(Ended::TooMuch);
            }
            if bytes - acked >= ACK_EVERY || !self.reader.is_ready(Duration::ZERO)? {
                self.acks.frame(Frame::Ack { bytes })?;
                acked = bytes;
            }
        }
    }
}

/// Why a receiver has ended.
enum Ended {
    Link(LinkError),
    Memory(io::Error),
    TooMuch,
}

impl From<LinkError> for Ended {
    fn from(error: LinkError) -> Self {
        Self::Link(error)
    }
}
