//! Measures the line to a destination. Nothing moves, and the destination waits for a source
//! afterwards as before.
//!
//! Pages are sent on the background links by the same senders as in pre-copy, with TLS if the
//! links have it. Before each piece, as much of the guest's memory is read as in pre-copy; it is
//! not sent: the destination has not been offered the guest. So on a fast line the rate is the one
//! that the processors of both hosts reach with the guest running.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use hikkoshi_link::{
    BackgroundSender, Bandwidth, HandshakeError, LinkError, Remote, hello, open, split,
};
use hikkoshi_linux::{CancelFlag, Priority, PriorityClass, sandbox_thread};
use hikkoshi_memory::{GuestRam, PageReader};
use hikkoshi_pages::{Page, PageRange};
use hikkoshi_wire::{
    Limits, MAX_PAGES_PER_FRAME, MigrationId, PROBE_PAGES, Role, ToDestination, ToSource,
};

use crate::source::error::SourceFailure;
use crate::source::migrate::random;

/// How long the destination may take to answer, or to acknowledge nothing.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// How often the round trip is measured.
const ECHOES: u32 = 16;

/// How long the round trip is measured, after the first echo.
const ECHO_TIME: Duration = Duration::from_millis(300);

/// Time between two samples of what has arrived.
const SAMPLE: Duration = Duration::from_millis(10);

/// What the last pieces on all links may take of the allowed bytes: half.
const MARGIN: u64 = 2;

const DOING: &str = "measuring the line to the destination";

/// How the line is measured.
#[derive(Debug, Clone, Copy)]
pub struct ProbeOptions {
    /// The number of background links.
    pub links: u16,
    /// How long to send.
    pub time: Duration,
    /// The most bytes to send, on all links together.
    pub bytes: u64,
    /// How the sending threads lower their priority: as in a migration.
    pub priority: Priority,
}

/// What was measured.
#[derive(Debug, Clone, PartialEq)]
pub struct ProbedLine {
    /// The shortest time from a message to its answer.
    pub round_trip: Duration,
    /// The median of these times.
    pub median_round_trip: Duration,
    /// What had arrived at which time after the start, on all links together. Bytes count when the
    /// destination has written them to memory.
    pub arrived: Vec<(Duration, u64)>,
    /// When the first link stopped sending. What arrived later did not share the line with as much
    /// as before, and is known sooner.
    pub sent_for: Duration,
    /// How long it took to open a link, with TLS if it has it.
    pub open_link: Duration,
}

/// Measures the line to the destination at `remote`. `memory`: the guest's memory and those of its
/// pages that are read meanwhile.
///
/// # Errors
/// If the destination cannot be reached, is not authentic, does not answer, or a link fails.
pub fn probe(
    remote: &Remote,
    options: &ProbeOptions,
    memory: Option<(&GuestRam, &[PageRange])>,
    cancel: &CancelFlag,
) -> Result<ProbedLine, SourceFailure> {
    let connect = |cause| SourceFailure::Connect {
        address: remote.address.to_string(),
        cause,
    };
    let failed = SourceFailure::link(DOING);
    let id = random().map_err(|error| connect(HandshakeError::Io(error)))?;
    let id = MigrationId::from_bytes(id);
    let opening = Instant::now();
    let (stream, _) = open(remote, &hello(Role::Control, id), cancel).map_err(connect)?;
    let open_link = opening.elapsed();
    let stream = Arc::new(stream);
    // No page travels on this link.
    let (mut reader, mut control) = split(&stream, Limits { pages: 0 }, cancel)
        .map_err(|error| failed(LinkError::Io(error)))?;
    control.set_progress_timeout(Some(ANSWER_TIMEOUT));
    reader.set_deadline(Some(Instant::now() + ANSWER_TIMEOUT));
    let mut ask = |message: &ToDestination| -> Result<ToSource, SourceFailure> {
        control
            .control(message)
            .map_err(SourceFailure::link(DOING))?;
        reader.control().map_err(SourceFailure::link(DOING))
    };
    let (most_bytes, most_time) = match ask(&ToDestination::Probe {
        background_links: options.links,
    })? {
        ToSource::ProbeReady { bytes, millis } => (bytes, Duration::from_millis(millis)),
        ToSource::Refuse { reason } => return Err(SourceFailure::Refused(reason)),
        other => return Err(SourceFailure::unexpected(DOING, &other)),
    };
    let senders = (0..options.links)
        .map(|index| {
            let hello = hello(Role::Background { index }, id);
            let (stream, _) = open(remote, &hello, cancel).map_err(connect)?;
            let stream = Arc::new(stream);
            let (acks, pages) = split(&stream, Limits { pages: PROBE_PAGES }, cancel)
                .map_err(|error| SourceFailure::link(DOING)(LinkError::Io(error)))?;
            let mut sender = BackgroundSender::new(acks, pages, &Bandwidth::unlimited());
            sender.set_progress_timeout(Some(ANSWER_TIMEOUT));
            Ok(sender)
        })
        .collect::<Result<Vec<_>, SourceFailure>>()?;
    let mut round_trips = Vec::new();
    let echoing = Instant::now();
    while round_trips.len() < ECHOES as usize
        && (round_trips.len() < 2 || echoing.elapsed() < ECHO_TIME)
    {
        let asked = Instant::now();
        match ask(&ToDestination::Echo)? {
            ToSource::Echoed => round_trips.push(asked.elapsed()),
            other => return Err(SourceFailure::unexpected(DOING, &other)),
        }
    }
    round_trips.sort_unstable();
    let sending = Sending {
        until: Instant::now() + options.time.min(most_time / 2),
        bytes: options.bytes.min(most_bytes / MARGIN) / u64::from(options.links.max(1)),
        memory,
        priority: options.priority,
        cancel,
    };
    let (arrived, sent_for) = sending.run(senders)?;
    // The measurement is complete: a destination that does not receive this ends it by itself.
    let _ = control.control(&ToDestination::Goodbye);
    // When the destination has closed the link, it waits for the next source.
    reader.set_deadline(Some(Instant::now() + ANSWER_TIMEOUT));
    while reader.control::<ToSource>().is_ok() {}
    Ok(ProbedLine {
        round_trip: round_trips.first().copied().unwrap_or_default(),
        median_round_trip: round_trips
            .get(round_trips.len() / 2)
            .copied()
            .unwrap_or_default(),
        arrived,
        sent_for,
        open_link,
    })
}

/// How the links send.
struct Sending<'a> {
    until: Instant,
    /// On each link.
    bytes: u64,
    memory: Option<(&'a GuestRam, &'a [PageRange])>,
    priority: Priority,
    cancel: &'a CancelFlag,
}

impl Sending<'_> {
    /// Sends on all links, and returns what had arrived when, and when the first link stopped
    /// sending.
    fn run(
        &self,
        senders: Vec<BackgroundSender>,
    ) -> Result<(Vec<(Duration, u64)>, Duration), SourceFailure> {
        let arrived: Vec<AtomicU64> = senders.iter().map(|_| AtomicU64::new(0)).collect();
        let over = AtomicBool::new(false);
        let begun = Instant::now();
        let sum = || {
            arrived
                .iter()
                .map(|link| link.load(Ordering::Relaxed))
                .sum()
        };
        thread::scope(|scope| {
            let threads = senders
                .into_iter()
                .zip(&arrived)
                .enumerate()
                .map(|(number, (sender, arrived))| {
                    thread::Builder::new()
                        .name(format!("src-probe-{number}"))
                        .spawn_scoped(scope, move || self.send(number, sender, arrived))
                        .map_err(SourceFailure::Thread)
                })
                .collect::<Vec<_>>();
            let sampling = scope.spawn(|| {
                let mut samples = vec![(Duration::ZERO, 0)];
                while !over.load(Ordering::Relaxed) {
                    thread::sleep(SAMPLE);
                    samples.push((begun.elapsed(), sum()));
                }
                samples
            });
            let sent = threads.into_iter().map(|thread| {
                thread?
                    .join()
                    .unwrap_or_else(|_| Err(SourceFailure::ThreadDied))
            });
            // All threads are joined, also after a failure.
            let sent: Vec<Result<Instant, SourceFailure>> = sent.collect();
            let ended = (begun.elapsed(), sum());
            over.store(true, Ordering::Relaxed);
            let samples = sampling.join().map_err(|_| SourceFailure::ThreadDied)?;
            let stopped = sent.into_iter().collect::<Result<Vec<_>, _>>()?;
            let sent_for = stopped
                .into_iter()
                .min()
                .map_or(ended.0, |first| first - begun);
            let mut samples: Vec<_> = samples
                .into_iter()
                .filter(|(at, _)| *at < ended.0)
                .collect();
            samples.push(ended);
            Ok((samples, sent_for))
        })
    }

    /// Sends on one link until the time is over, and waits until all of it has arrived. Returns
    /// when it stopped sending.
    fn send(
        &self,
        number: usize,
        mut sender: BackgroundSender,
        arrived: &AtomicU64,
    ) -> Result<Instant, SourceFailure> {
        self.priority.apply(PriorityClass::Background);
        sandbox_thread();
        let mut content = vec![0; hikkoshi_pages::usize_from(MAX_PAGES_PER_FRAME * 4096)];
        // Not compressible, in case the line compresses.
        fill(&mut content, number as u64);
        let mut reader = PageReader::new(hikkoshi_pages::usize_from(MAX_PAGES_PER_FRAME));
        let mut pieces = self.memory.map(|(ram, ranges)| {
            let pieces = ranges
                .iter()
                .flat_map(|range| range.chunks(MAX_PAGES_PER_FRAME));
            // Each link begins elsewhere.
            (ram, pieces.cycle().skip(number * 16))
        });
        let mut at = 0;
        while Instant::now() < self.until && sender.sent() < self.bytes {
            if let Some((ram, pieces)) = &mut pieces
                && let Some(piece) = pieces.next()
            {
                reader.runs(ram, piece, |_| Ok::<_, io::Error>(()))?;
            }
            let range = PageRange::from_len(Page::new(at), MAX_PAGES_PER_FRAME);
            at = (at + MAX_PAGES_PER_FRAME) % PROBE_PAGES;
            sender
                .pages(range, &content, self.cancel)
                .map_err(SourceFailure::link(DOING))?;
            arrived.store(sender.arrived(), Ordering::Relaxed);
        }
        let stopped = Instant::now();
        // In steps: so that what arrives meanwhile is known, too.
        while sender.arrived() < sender.sent() {
            sender
                .await_acknowledgement(self.cancel)
                .map_err(SourceFailure::link(DOING))?;
            arrived.store(sender.arrived(), Ordering::Relaxed);
        }
        Ok(stopped)
    }
}

/// Fills `buffer` with bytes that do not repeat: xorshift64 (G. Marsaglia, "Xorshift RNGs", 2003).
fn fill(buffer: &mut [u8], seed: u64) {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for bytes in buffer.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.copy_from_slice(&state.to_le_bytes()[..bytes.len()]);
    }
}
