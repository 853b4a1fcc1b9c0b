//! How long one page request takes while background pages fill the line.
//!
//! `cargo bench -p hikkoshi-engine --bench preemption -- [LINE] [--seconds N] …`: two network
//! namespaces and the engine's own links, but no guest: a thread in the vCPU's place spins for a
//! while, then waits for a page, as long as the background lasts. So an idea can be tried in
//! seconds. The results are in `docs/preemption.md`.
//!
//! `-- --ablation`: what each step gains, with pages of 4 KiB and 2 MiB, at 10 and 1 Gbit/s: a
//! channel of its own for urgent pages, background pages of 2 MiB that urgent ones interrupt, and a
//! request that is answered by the thread that reads it. `--rounds N` rounds, alternating. Prints
//! the medians as comma-separated values, of which `hikkoshi-plots` makes a table and a plot.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)] // A measurement.

use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use hikkoshi_engine::{CancelFlag, Priority, PriorityClass};
use hikkoshi_lab::{HostPair, Namespace, RateLimit};
use hikkoshi_link::tls::{TimeLimits, TlsClient, TlsServer};
use hikkoshi_link::{
    BackgroundSender, Bandwidth, LinkError, LinkReader, LinkWriter, Stream, UrgentActivity, split,
};
use hikkoshi_pages::{PAGE_SIZE, Page, PageRange};
use hikkoshi_wire::{Frame, HEADER_LEN, Limits};

/// The memory that goes back and forth, in pages: more than the caches hold. Background pages are
/// from the first half, requested ones from the second.
const MEMORY: usize = 32 << 10;
const REQUESTED: u64 = MEMORY as u64 / 2;
const LIMITS: Limits = Limits {
    pages: MEMORY as u64,
};
/// As in the engine.
const ACK_EVERY: u64 = 32 << 10;

/// Pages in a huge page, and in the frames in which it is sent.
const HUGE: usize = 512;
const HUGE_FRAME: usize = 256;

/// Pages in the frames in which a requested huge page is sent.
const URGENT_FRAME: u64 = 8;

/// Who sends a page that was requested.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Sender {
    /// The thread that has read the request, on the urgent link.
    Reader,
    /// The thread that pushes background pages, between two of them: on the urgent link.
    Pusher,
    /// The same, on its background link.
    PusherOnItsLink,
}

/// What is tried, from the command line.
#[derive(Debug, Clone)]
struct Trial {
    gbit: u64,
    links: usize,
    /// Pages that are pushed at once: more than a frame has are not interrupted.
    piece: usize,
    sender: Sender,
    /// Pages of 4 KiB in a page that is requested.
    request: u64,
    seconds: f64,
    /// Mean time between a page and the next request, µs; none: no requests.
    think: Option<u64>,
    limit_in_flight: bool,
    ack_every: u64,
    adapt: bool,
    cubic: bool,
    poll: bool,
    tls: bool,
    priority: Priority,
}

impl Trial {
    /// The trial, and the rounds of an ablation, if that is asked for.
    fn from_args() -> (Self, Option<u32>) {
        let (mut ablation, mut rounds) = (false, 5);
        let mut trial = Self {
            gbit: 1,
            links: 1,
            piece: 8,
            sender: Sender::Reader,
            request: 1,
            seconds: 3.0,
            think: Some(50),
            limit_in_flight: true,
            ack_every: ACK_EVERY,
            adapt: true,
            cubic: false,
            poll: false,
            tls: false,
            priority: Priority::ON,
        };
        let mut args = std::env::args().skip(1);
        while let Some(name) = args.next() {
            let mut value = || args.next().unwrap();
            match name.as_str() {
                "--gbit" => trial.gbit = value().parse().unwrap(),
                "--links" => trial.links = value().parse().unwrap(),
                "--piece" => trial.piece = value().parse().unwrap(),
                "--request" => trial.request = value().parse().unwrap(),
                "--seconds" => trial.seconds = value().parse().unwrap(),
                "--think" => trial.think = Some(value().parse().unwrap()),
                "--idle" => trial.think = None,
                "--unbounded" => trial.limit_in_flight = false,
                "--ack-every" => trial.ack_every = value().parse().unwrap(),
                "--fixed-piece" => trial.adapt = false,
                "--cubic" => trial.cubic = true,
                "--poll" => trial.poll = true,
                "--tls" => trial.tls = true,
                "--no-priority" => trial.priority = Priority::OFF,
                "--ablation" => ablation = true,
                "--rounds" => rounds = value().parse().unwrap(),
                // What cargo adds.
                "--bench" => {}
                other => panic!("{other}?"),
            }
        }
        (trial, ablation.then_some(rounds))
    }

    /// This trial without the steps, with each, and with all of them.
    fn ablated(&self) -> Vec<(&'static str, Self)> {
        use Sender::{Pusher, PusherOnItsLink, Reader};
        let step = |sender, piece| Self {
            sender,
            piece,
            limit_in_flight: false,
            adapt: false,
            ..self.clone()
        };
        vec![
            ("none", step(PusherOnItsLink, HUGE)),
            ("interrupts 2 MiB", step(PusherOnItsLink, 8)),
            ("own channel", step(Pusher, HUGE)),
            ("own channel and interrupts", step(Pusher, 8)),
            ("own channel and the reader sends", step(Reader, HUGE)),
            ("all three", step(Reader, 8)),
            ("all three and limited in flight", self.clone()),
        ]
    }
}

/// What was measured.
struct Outcome {
    /// Background, MB/s.
    background: f64,
    /// Of the accesses, µs.
    latency: Option<Histogram<u64>>,
}

fn main() {
    let (trial, rounds) = Trial::from_args();
    match rounds {
        Some(rounds) => ablation(&trial, rounds),
        None => println!("{}", run(&trial)),
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:7.1} MB/s background", self.background)?;
        let Some(latency) = &self.latency else {
            return Ok(());
        };
        write!(
            f,
            "; {:6} requests: mean {:6.1} p50 {:4} p99 {:5} max {:6} us",
            latency.len(),
            latency.mean(),
            latency.value_at_quantile(0.5),
            latency.value_at_quantile(0.99),
            latency.max()
        )
    }
}

/// Runs each step on each line and with each size of page, in rounds, and prints the medians.
fn ablation(trial: &Trial, rounds: u32) {
    let cases: Vec<_> = [(10, 1), (1, 1), (10, HUGE as u64), (1, HUGE as u64)]
        .into_iter()
        .map(|(gbit, request)| Trial {
            gbit,
            request,
            ..trial.clone()
        })
        .flat_map(|case| case.ablated())
        .collect();
    let mut rows = vec![Vec::new(); cases.len()];
    for round in 1..=rounds {
        for ((name, case), row) in cases.iter().zip(&mut rows) {
            let outcome = run(case);
            let (gbit, page) = (case.gbit, case.request * 4);
            eprintln!("round {round} {gbit} Gbit/s, {page} KiB, {name}: {outcome}");
            let latency = outcome.latency.unwrap();
            let quantile = |part| latency.value_at_quantile(part) as f64;
            let (mean, background) = (latency.mean(), outcome.background);
            row.push([mean, quantile(0.5), quantile(0.99), background]);
        }
    }
    println!("steps,Gbit/s,page in KiB,mean in µs,p50,p99,background in MB/s");
    for ((name, case), row) in cases.iter().zip(&rows) {
        let median = |column: usize| {
            let mut values: Vec<f64> = row.iter().map(|values| values[column]).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        let [mean, p50, p99, background] = [0, 1, 2, 3].map(median);
        let (gbit, page) = (case.gbit, case.request * 4);
        println!("{name},{gbit},{page},{mean:.0},{p50:.0},{p99:.0},{background:.0}");
    }
}

fn run(trial: &Trial) -> Outcome {
    let rate_limit = (trial.gbit > 0).then(|| RateLimit {
        rate_bits: trial.gbit * 1_000_000_000,
        burst_bytes: 512 << 10,
        latency: Duration::from_millis(50),
    });
    let line = HostPair::new(rate_limit).unwrap();
    if trial.cubic {
        for host in [line.source(), line.destination()] {
            let sysctl = ["-w", "net.ipv4.tcp_congestion_control=cubic"];
            host.command("sysctl").args(sysctl).output().unwrap();
        }
    }
    let stop = CancelFlag::new();
    let urgency = UrgentActivity::new();
    let memory: Arc<Vec<u8>> = Arc::new((0..=255).cycle().take(MEMORY * PAGE_SIZE).collect());

    let mut threads = Vec::new();
    let received = Arc::new(AtomicU64::new(0));
    let cursor = Arc::new(AtomicU64::new(0));
    let urgent = connect(trial, &line);
    let (wake_in, wake_out) = pipe().unwrap();
    let (sender, requested) = mpsc::channel();
    let mut answers = (trial.sender != Sender::Reader).then(|| Answers {
        requested,
        writer: (trial.sender == Sender::Pusher)
            .then(|| split(&urgent.0, LIMITS, &stop).unwrap().1),
    });
    for _ in 0..trial.links {
        let (source, destination) = connect(trial, &line);
        let (reader, writer) = split(&destination, LIMITS, &stop).unwrap();
        let (t, r) = (trial.clone(), Arc::clone(&received));
        let wake = wake_out.try_clone().unwrap();
        threads.push(thread::spawn(move || receive(&t, reader, writer, &r, wake)));
        let (reader, writer) = split(&source, LIMITS, &stop).unwrap();
        let (t, m, s) = (trial.clone(), Arc::clone(&memory), stop.clone());
        let (c, u) = (Arc::clone(&cursor), urgency.clone());
        let answers = answers.take();
        threads.push(thread::spawn(move || {
            push(&t, reader, writer, &m, &c, u, answers, &s);
        }));
    }
    let begun = Instant::now();
    let latency = trial.think.map(|think| {
        let asked = Asked {
            urgent,
            sender,
            wake: (wake_in, wake_out),
        };
        ask(trial, think, asked, &memory, &urgency, &stop)
    });
    if latency.is_none() {
        thread::sleep(Duration::from_secs_f64(trial.seconds));
    }
    let bytes = received.load(Ordering::Relaxed);
    let seconds = begun.elapsed().as_secs_f64();
    stop.cancel();
    for thread in threads {
        thread.join().unwrap();
    }
    Outcome {
        background: bytes as f64 / seconds / 1e6,
        latency,
    }
}

/// One connection over the line: the source's end and the destination's.
fn connect(trial: &Trial, line: &HostPair) -> (Arc<Stream>, Arc<Stream>) {
    let inside = |host: &Namespace, f: Box<dyn FnOnce() -> Stream + Send>| host.run(f).unwrap();
    let listener = line
        .destination()
        .run(|| std::net::TcpListener::bind((HostPair::DESTINATION, 0)).unwrap())
        .unwrap();
    let address = listener.local_addr().unwrap();
    let source = inside(
        line.source(),
        Box::new(move || {
            let address = address.to_string().parse().unwrap();
            Stream::connect(&address, false, &CancelFlag::new()).unwrap()
        }),
    );
    let destination = Stream::tcp(listener.accept().unwrap().0).unwrap();
    if !trial.tls {
        return (Arc::new(source), Arc::new(destination));
    }
    let server = TlsServer::inviting().unwrap();
    let invitation = server.invitation("127.0.0.1:1".parse().unwrap()).unwrap();
    let client = TlsClient::invited(&invitation).unwrap();
    let stop = CancelFlag::new();
    let peer_timeout = TimeLimits {
        deadline: Instant::now() + Duration::from_secs(10),
        stop: &stop,
    };
    thread::scope(|scope| {
        let accepting = scope.spawn(|| destination.secure_server(&server, peer_timeout).unwrap());
        let source = source.secure_client(&client, peer_timeout).unwrap();
        (Arc::new(source), Arc::new(accepting.join().unwrap().0))
    })
}

/// What the thread that pushes answers.
struct Answers {
    requested: mpsc::Receiver<PageRange>,
    /// The urgent link, if these pages have a channel of their own.
    writer: Option<LinkWriter>,
}

/// Pushes pages until told to stop.
#[allow(clippy::too_many_arguments)] // What its thread owns.
fn push(
    trial: &Trial,
    reader: LinkReader,
    writer: LinkWriter,
    memory: &[u8],
    cursor: &AtomicU64,
    urgency: UrgentActivity,
    mut answers: Option<Answers>,
    stop: &CancelFlag,
) {
    trial.priority.apply(PriorityClass::Background);
    let content = |at: u64, pages: usize| {
        let from = usize::try_from(at).unwrap() * PAGE_SIZE;
        &memory[from..from + pages * PAGE_SIZE]
    };
    let mut link = BackgroundSender::new(reader, writer, &Bandwidth::unlimited());
    if trial.limit_in_flight {
        link.yield_to_urgent(urgency, trial.links as u64);
    }
    let mut buffer = vec![0; trial.piece * PAGE_SIZE];
    loop {
        let result = (|| {
            let mut pages = trial.piece;
            if trial.adapt {
                pages = pages.min(usize::try_from(link.piece_pages()).unwrap());
            }
            if let Some(answers) = &mut answers {
                while let Ok(range) = answers.requested.try_recv() {
                    for frame in range.chunks(URGENT_FRAME) {
                        let pages = usize::try_from(frame.len()).unwrap();
                        let content = content(frame.start().index(), pages);
                        match &mut answers.writer {
                            Some(writer) => writer.pages(frame, content)?,
                            None => link.pages(frame, content, stop)?,
                        }
                    }
                    if answers.writer.is_none() {
                        link.flush(stop)?;
                    }
                }
            }
            let step = pages as u64;
            let at = cursor.fetch_add(step, Ordering::Relaxed) % (REQUESTED - step);
            let frames = PageRange::from_len(Page::new(at), step).chunks(HUGE_FRAME as u64);
            for frame in frames {
                let pages = usize::try_from(frame.len()).unwrap();
                link.make_room((pages * (PAGE_SIZE + HEADER_LEN)) as u64, stop)?;
                let buffer = &mut buffer[..pages * PAGE_SIZE];
                buffer.copy_from_slice(content(frame.start().index(), pages));
                link.pages(frame, buffer, stop)?;
            }
            link.flush(stop)
        })();
        match result {
            Ok(()) => {}
            Err(LinkError::Stopped) => return,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Receives and acknowledges as the destination does.
fn receive(
    trial: &Trial,
    mut reader: LinkReader,
    mut acks: LinkWriter,
    received: &AtomicU64,
    mut wake: PipeWriter,
) {
    trial.priority.apply(PriorityClass::Background);
    let mut memory = vec![1; MEMORY * PAGE_SIZE];
    let mut buffer = vec![0; 256 * PAGE_SIZE];
    let (mut acked, mut answered) = (0, 0);
    loop {
        let frame = match reader.frame() {
            Ok(frame) => frame,
            Err(LinkError::Stopped | LinkError::Closed | LinkError::Io(_)) => return,
            Err(error) => panic!("{error}"),
        };
        if let Frame::Pages { range } = frame {
            let content = &mut buffer[..frame.payload_len()];
            if reader.payload(content).is_err() {
                return;
            }
            let from = usize::try_from(range.start().index()).unwrap() * PAGE_SIZE;
            memory[from..from + content.len()].copy_from_slice(content);
            if range.start().index() < REQUESTED {
                received.fetch_add(content.len() as u64, Ordering::Relaxed);
            } else {
                answered += range.len();
                if answered == trial.request {
                    answered = 0;
                    let _ = wake.write_all(&[0]);
                }
            }
        }
        let bytes = reader.received();
        if bytes - acked >= trial.ack_every || !reader.is_ready(Duration::ZERO).unwrap_or(true) {
            if acks.frame(Frame::Ack { bytes }).is_err() {
                return;
            }
            acked = bytes;
        }
    }
}

/// What serves the vCPU.
struct Asked {
    /// The urgent link.
    urgent: (Arc<Stream>, Arc<Stream>),
    /// To the thread that pushes.
    sender: mpsc::Sender<PageRange>,
    /// Wakes the vCPU.
    wake: (PipeReader, PipeWriter),
}

/// The vCPU and all who serve it: how long its accesses took, in µs.
fn ask(
    trial: &Trial,
    think: u64,
    asked: Asked,
    memory: &Arc<Vec<u8>>,
    urgency: &UrgentActivity,
    stop: &CancelFlag,
) -> Histogram<u64> {
    let (source, destination) = asked.urgent;
    let sender = asked.sender;
    let (mut wake_in, mut wake_out) = asked.wake;
    let (mut fault_in, mut fault_out) = pipe().unwrap();

    // The source.
    let (mut requests, mut pages) = split(&source, LIMITS, stop).unwrap();
    let memory = Arc::clone(memory);
    let (t, urgency) = (trial.clone(), urgency.clone());
    let answering = thread::spawn(move || {
        t.priority.apply(PriorityClass::Urgent);
        requests.set_poll(t.poll);
        let mut buffer = vec![0; usize::try_from(URGENT_FRAME).unwrap() * PAGE_SIZE];
        while let Ok(Frame::Request { range }) = requests.frame() {
            if t.sender != Sender::Reader {
                let _ = sender.send(range);
                continue;
            }
            let _answering = urgency.begin();
            for frame in range.chunks(URGENT_FRAME) {
                let from = usize::try_from(frame.start().index()).unwrap() * PAGE_SIZE;
                let content = &mut buffer[..usize::try_from(frame.len()).unwrap() * PAGE_SIZE];
                content.copy_from_slice(&memory[from..from + content.len()]);
                pages.pages(frame, content).unwrap();
            }
        }
    });
    // The destination: faults to requests, pages to memory.
    let (mut pages, mut requests) = split(&destination, LIMITS, stop).unwrap();
    let (priority, pages_in_request) = (trial.priority, trial.request);
    let faults = thread::spawn(move || {
        priority.apply(PriorityClass::Urgent);
        let mut page = [0; 8];
        while fault_in.read_exact(&mut page).is_ok() {
            let range = PageRange::from_len(Page::new(u64::from_le_bytes(page)), pages_in_request);
            requests.frame(Frame::Request { range }).unwrap();
        }
    });
    let t = trial.clone();
    let installing = thread::spawn(move || {
        t.priority.apply(PriorityClass::Urgent);
        pages.set_poll(t.poll);
        let mut buffer = vec![0; HUGE * PAGE_SIZE];
        let mut answered = 0;
        while let Ok(frame) = pages.frame() {
            let content = &mut buffer[..frame.payload_len()];
            pages.payload(content).unwrap();
            answered += content.len() / PAGE_SIZE;
            if answered as u64 == t.request {
                answered = 0;
                wake_out.write_all(&[0]).unwrap();
            }
        }
    });

    let mut latency = Histogram::<u64>::new(3).unwrap();
    let begun = Instant::now();
    let mut seed = 1u64;
    while begun.elapsed().as_secs_f64() < trial.seconds {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        // Evenly spread, mean `think`: the guest computes.
        let computed = Instant::now();
        let think = Duration::from_nanos((seed >> 33) % (2000 * think + 1));
        while computed.elapsed() < think {
            std::hint::spin_loop();
        }
        let choices = (MEMORY as u64 - REQUESTED) / trial.request;
        let page = REQUESTED + (seed >> 20) % choices * trial.request;
        let asked = Instant::now();
        fault_out.write_all(&page.to_le_bytes()).unwrap();
        wake_in.read_exact(&mut [0]).unwrap();
        if begun.elapsed() > Duration::from_millis(300) {
            latency
                .record(u64::try_from(asked.elapsed().as_micros()).unwrap())
                .unwrap();
        }
    }
    drop(fault_out);
    source.shutdown();
    destination.shutdown();
    for thread in [answering, faults, installing] {
        thread.join().unwrap();
    }
    latency
}
