//! Measures a guest and the line to its destination, and predicts each mode.

use std::collections::hash_map::RandomState;
use std::error::Error;
use std::hash::{BuildHasher, Hasher};
use std::path::Path;
use std::time::{Duration, Instant};

use error_reporter::Report;
use hikkoshi_dirty_rate::{FAULT_COST, KVM_FAULT_COST, Measurement, Options, measure};
use hikkoshi_engine::{
    CancelFlag, Comparison, Mode, OfferedGuest, Priority, ProbeOptions, SourceOptions, compare,
    probe,
};
use hikkoshi_estimate::{
    CompressedPages, Guest, Line, Span, WorkingSet, choose_compression, choose_mode, predict,
};
use hikkoshi_link::Remote;
use hikkoshi_memory::{ContentSample, sample_content};
use hikkoshi_qemu::{Checked, QemuMeasurement, Verdict};

use super::compressed_sample::CompressedSample;
use crate::args::DomainArgs;
use crate::commands::check::{self, CheckedGuestOf};
use crate::commands::dirty_rate;
use crate::output::estimate::{Estimated, EstimatedMode};
use crate::output::exit::{Exit, ExitStatus};
use crate::output::reason::Reason;

/// How long memory is read to find out how much of it has content.
const READ_TIME: Duration = Duration::from_millis(250);

/// How long the line is measured.
const PROBE_TIME: Duration = Duration::from_secs(1);

/// Time between two reads of the dirty log: the shortest window of the working sets.
const INTERVAL: Duration = Duration::from_millis(50);

const UNCHANGED: &str = "the guest is as before";

/// There is neither a destination nor a rate.
pub(super) const NO_RATE: &str =
    "without a destination, --bandwidth is the rate of the line: none is not a rate";

const NO_DIRTY_LOG: &str = "this host's kernel cannot track writes to the guest's memory, so what \
                            pre-copy would be like is not known ('hikkoshi check' says what is missing)";

const MODES: [Mode; 3] = [Mode::Precopy, Mode::Postcopy, Mode::Hybrid];

/// What is to be measured.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    pub(crate) guest: CheckedGuestOf<'a>,
    pub(crate) domain: &'a DomainArgs,
    pub(crate) qmp: Option<&'a Path>,
    pub(crate) remote: Option<&'a Remote>,
    pub(crate) allow_cpu_mismatch: bool,
    pub(crate) round_trip: Option<Duration>,
    /// `options.bandwidth` is the line's rate if there is no destination.
    pub(crate) options: SourceOptions,
    pub(crate) seconds: Duration,
    pub(crate) max_cost: f64,
    pub(crate) probe_limit: u64,
}

/// Why there is no estimate. The guest is as before.
#[derive(Debug)]
pub(crate) enum NotEstimated {
    /// The kernel cannot track writes.
    NoDirtyLog,
    /// The guest cannot be measured, or the destination does not answer.
    Failed(Exit),
}

impl From<Exit> for NotEstimated {
    fn from(exit: Exit) -> Self {
        Self::Failed(exit)
    }
}

impl From<NotEstimated> for Exit {
    fn from(why: NotEstimated) -> Self {
        let exit = match why {
            NotEstimated::Failed(exit) => return exit,
            NotEstimated::NoDirtyLog => {
                Exit::new(ExitStatus::AtSource, Reason::Unsupported, NO_DIRTY_LOG)
            }
        };
        exit.with(UNCHANGED)
    }
}

/// Measures and predicts.
///
/// # Errors
/// See [`NotEstimated`].
pub(crate) fn estimate(
    request: &Request<'_>,
    cancel: &CancelFlag,
) -> Result<Estimated, NotEstimated> {
    let checked = check::check(&request.guest)?;
    if !checked.kernel.dirty_log {
        return Err(NotEstimated::NoDirtyLog);
    }
    let comparison = compared(request, &checked, cancel)?;
    let attached = dirty_rate::attach(request.qmp, request.domain, &[])?;
    let measured = measure_guest(request, &attached, cancel);
    let pid = attached.pid();
    let mut notes = attached.notes().to_vec();
    let kvm = attached.uses_kvm();
    let stopped = attached.stop();
    let Measured {
        measurement,
        content,
        compressed,
        line,
        probed,
    } = measured?;
    if let Err(error) = stopped {
        notes.push(Report::new(&error).to_string());
    }
    let mut guest = guest(&checked, &measurement, &content, kvm);
    let line = match (line, request.options.bandwidth) {
        (Some(line), _) => line,
        (None, Some(rate)) => Line::given(rate, request.round_trip, &guest, request.options.links),
        (None, None) => return Err(Exit::new(ExitStatus::Usage, Reason::Usage, NO_RATE).into()),
    };
    guest.compression = choose_compression(&compressed, guest.read_page, &line, &request.options);
    let modes: Vec<_> = MODES
        .into_iter()
        .map(|mode| {
            let options = SourceOptions {
                mode,
                ..request.options.clone()
            };
            EstimatedMode {
                prediction: predict(&guest, &line, &options),
                obstacles: obstacles(&checked, comparison.as_ref(), mode),
            }
        })
        .collect();
    let possible: Vec<_> = modes
        .iter()
        .filter(|mode| mode.obstacles.is_empty())
        .map(|mode| mode.prediction)
        .collect();
    Ok(Estimated {
        pid,
        measurement,
        content,
        guest,
        compressed,
        line,
        probed,
        choice: choose_mode(&possible),
        modes,
        notes,
    })
}

/// Asks the destination which modes are possible. Not for a domain: a destination with libvirt
/// would create it to find out.
fn compared(
    request: &Request<'_>,
    checked: &Checked,
    cancel: &CancelFlag,
) -> Result<Option<Comparison>, Exit> {
    let (Some(remote), Some(offer)) = (request.remote, &checked.offer) else {
        return Ok(None);
    };
    if offer.domain.is_some() {
        return Ok(None);
    }
    let offered = offer.disks().map_err(|error| {
        Exit::caused(ExitStatus::AtSource, Reason::NotAttached, &error).with(UNCHANGED)
    })?;
    let guest = OfferedGuest {
        domain: None,
        description: offer.description.clone(),
        machine: offer.machine.clone(),
        processors: offer.processors.clone(),
        allow_cpu_mismatch: request.allow_cpu_mismatch,
        disks: offered.disks.clone(),
    };
    compare(remote, guest, cancel).map(Some).map_err(|error| {
        Exit::caused(ExitStatus::AtSource, Reason::from(&error), &error).with(UNCHANGED)
    })
}

/// Why the guest cannot be moved in this mode.
fn obstacles(checked: &Checked, comparison: Option<&Comparison>, mode: Mode) -> Vec<String> {
    let here = checked
        .obstacles
        .iter()
        .filter(|obstacle| obstacle.excludes().includes(mode))
        .map(|obstacle| obstacle.reason());
    let there = comparison
        .into_iter()
        .flat_map(|comparison| &comparison.obstacles)
        .filter(|obstacle| mode != Mode::Precopy || !obstacle.postcopy_only)
        .map(|obstacle| format!("at the destination: {}", obstacle.reason));
    here.chain(there).collect()
}

struct Measured {
    measurement: Measurement,
    content: ContentSample,
    compressed: Vec<CompressedPages>,
    line: Option<Line>,
    probed: Option<(u64, Duration)>,
}

/// Everything that is measured while the guest cannot be moved or measured by another process.
fn measure_guest(
    request: &Request<'_>,
    attached: &QemuMeasurement,
    cancel: &CancelFlag,
) -> Result<Measured, Exit> {
    let seed = RandomState::new().build_hasher().finish();
    let interval = INTERVAL.min(request.seconds);
    let fault_cost = if attached.uses_kvm() {
        KVM_FAULT_COST
    } else {
        FAULT_COST
    };
    let options = Options::new(request.seconds, interval)
        .map_err(|error| Exit::caused(ExitStatus::Usage, Reason::Usage, &error))?
        .max_cost(request.max_cost)
        .fault_cost(fault_cost)
        .seed(seed);
    let failed = |reason, error: &dyn Error| {
        Exit::caused(ExitStatus::AtSource, reason, error).with(UNCHANGED)
    };
    let measurement = measure(attached.log(), attached.layout(), &options, cancel)
        .map_err(|error| failed(Reason::DirtyLog, &error))?;
    if cancel.is_cancelled() || measurement.intervals == 0 {
        let what = "estimating was cancelled";
        return Err(Exit::new(ExitStatus::AtSource, Reason::Cancelled, what).with(UNCHANGED));
    }
    // After the writes: a guest that allocates memory has most of it now.
    let mut sample = CompressedSample::new(request.options.compression);
    let content = sample_content(attached.memory(), READ_TIME, seed, |part| sample.add(part))
        .map_err(|error| failed(Reason::Memory, &error))?;
    let mut measured = Measured {
        measurement,
        content,
        compressed: sample.pages(),
        line: None,
        probed: None,
    };
    let Some(remote) = request.remote else {
        return Ok(measured);
    };
    let probing = Instant::now();
    let probed = probe(
        remote,
        &ProbeOptions {
            links: request.options.links,
            time: PROBE_TIME,
            bytes: request.probe_limit,
            priority: Priority::ON,
        },
        Some((attached.memory(), &measured.content.ranges)),
        cancel,
    )
    .map_err(|error| failed(Reason::from(&error), &error))?;
    let line = Line::measured(
        &probed.arrived,
        probed.sent_for,
        probed.round_trip,
        probed.median_round_trip,
        probed.open_link,
    );
    let line = line.ok_or_else(|| {
        let what = "measuring the line to the destination: nothing has arrived there in time";
        Exit::new(ExitStatus::AtSource, Reason::Link, what).with(UNCHANGED)
    })?;
    let bytes = probed.arrived.last().map_or(0, |(_, bytes)| *bytes);
    measured.line = Some(line);
    measured.probed = Some((bytes, probing.elapsed()));
    Ok(measured)
}

fn guest(
    checked: &Checked,
    measurement: &Measurement,
    content: &ContentSample,
    kvm: bool,
) -> Guest {
    let read = float(content.read).max(1.0);
    let part = float(content.data) / read;
    // Two standard errors of a sample of places, if not everything was read.
    let error = match content.read < content.allocated {
        true => 2.0 * (part * (1.0 - part) / float(content.units).max(1.0)).sqrt(),
        false => 0.0,
    };
    let of = |part: f64| float(content.allocated) * part.clamp(0.0, 1.0);
    // The guest may write to more of it, or free some, before it is moved.
    let data_pages = Span {
        low: of(part - error) * 0.98,
        likely: of(part),
        high: of(part + error) * 1.02,
    };
    Guest {
        pages: measurement.total.pages,
        data_pages,
        zero_pages: Span {
            low: of(1.0 - part - error),
            likely: of(1.0 - part),
            high: of(1.0 - part + error),
        },
        working_set: WorkingSet::of_measurement(measurement),
        vcpus: u32::try_from(checked.guest.cpus).unwrap_or(u32::MAX),
        devices: u32::try_from(checked.devices.len()).unwrap_or(u32::MAX),
        disks: u32::try_from(checked.disks.len()).unwrap_or(u32::MAX),
        write_fault: if kvm { KVM_FAULT_COST } else { FAULT_COST },
        read_page: content.time.as_secs_f64() / read,
        drains: checked
            .disks
            .iter()
            .chain(&checked.devices)
            .any(|part| part.verdict == Verdict::Drained),
        compression: None,
    }
}

/// Exact below 2^53.
#[allow(clippy::cast_precision_loss)]
fn float(number: u64) -> f64 {
    number as f64
}
