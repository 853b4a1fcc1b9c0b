//! Options of the command line, as they are stored. `null`: not given.

use std::ops::RangeInclusive;
use std::time::Duration;

use hikkoshi_engine::destination::MAX_FAULT_THREADS;
use hikkoshi_engine::{MAX_LINKS, ReadAhead};
use serde::{Deserialize, Serialize};

use super::RecordError;
use super::engine::ModeTag;
use crate::args::{
    AllowDevice, Bandwidth, BenchOptions, ConvergenceOptions, DiskArgs, DomainOptions,
    JournaledOptions, LatencyOptions, MAX_DOWNTIME_MS, MAX_READ_AHEAD, MigrateOptions,
    ReceiveOptions, RequestedMode, WhenStalled,
};

/// [`MigrateOptions`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MigrateOptionsRecord {
    shared: JournaledOptionsRecord,
    mode: Option<ModeTag>,
    max_downtime_ms: Option<u64>,
    bandwidth_bytes_per_s: Option<u64>,
    when_stalled: Option<WhenStalledTag>,
    allow_cpu_mismatch: bool,
    quit_source: bool,
    undefine_source: bool,
    persistent: bool,
    autostart: bool,
    links: Option<u16>,
    rounds: Option<u32>,
    max_rounds: Option<u32>,
    read_ahead: Option<ReadAheadRecord>,
    no_hot_first: bool,
    no_follow: bool,
    no_bound: bool,
    background_delay_ms: Option<u64>,
    no_drain: bool,
    poll: bool,
    no_priority: bool,
}

/// [`ReceiveOptions`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReceiveOptionsRecord {
    shared: JournaledOptionsRecord,
    fault_threads: Option<u16>,
    collapse_bytes_per_s: Option<u64>,
    poll: bool,
    no_priority: bool,
}

/// [`JournaledOptions`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct JournaledOptionsRecord {
    allow_device: Vec<String>,
    stall_timeout_s: Option<u64>,
    retry_for_s: Option<u64>,
}

/// [`WhenStalled`].
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
enum WhenStalledTag {
    #[serde(rename = "continue")]
    Continue,
    #[serde(rename = "switch")]
    Switch,
    #[serde(rename = "stop")]
    Stop,
}

/// [`ReadAhead`].
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
enum ReadAheadRecord {
    #[serde(rename = "off")]
    Off,
    #[serde(rename = "adaptive")]
    Adaptive,
    /// Pages on either side.
    #[serde(rename = "pages")]
    Pages(u32),
}

impl From<&MigrateOptions> for MigrateOptionsRecord {
    fn from(options: &MigrateOptions) -> Self {
        Self {
            shared: (&options.journaled).into(),
            mode: options.mode.and_then(RequestedMode::fixed).map(Into::into),
            max_downtime_ms: options.convergence.max_downtime,
            bandwidth_bytes_per_s: options.bandwidth(),
            when_stalled: options.convergence.when_stalled.map(Into::into),
            allow_cpu_mismatch: options.allow_cpu_mismatch,
            quit_source: options.quit_source,
            undefine_source: options.domain.undefine_source,
            persistent: options.domain.persistent,
            autostart: options.domain.autostart,
            links: options.convergence.links,
            rounds: options.convergence.rounds,
            max_rounds: options.convergence.max_rounds,
            read_ahead: options.read_ahead.map(Into::into),
            no_hot_first: options.bench.no_hot_first,
            no_follow: options.bench.no_follow,
            no_bound: options.bench.no_bound,
            background_delay_ms: options.bench.background_delay,
            no_drain: options.bench.no_drain,
            poll: options.latency.poll,
            no_priority: options.latency.no_priority,
        }
    }
}

impl TryFrom<MigrateOptionsRecord> for MigrateOptions {
    type Error = RecordError;

    fn try_from(record: MigrateOptionsRecord) -> Result<Self, RecordError> {
        let read_ahead = record.read_ahead.map(ReadAhead::try_from).transpose()?;
        Ok(Self {
            journaled: record.shared.try_into()?,
            mode: record.mode.map(|mode| RequestedMode::Fixed(mode.into())),
            bandwidth: within("bandwidth", record.bandwidth_bytes_per_s, 1..=u64::MAX)?
                .map(|bytes| Bandwidth { limit: Some(bytes) }),
            convergence: ConvergenceOptions {
                max_downtime: within("max-downtime", record.max_downtime_ms, 1..=MAX_DOWNTIME_MS)?,
                when_stalled: record.when_stalled.map(Into::into),
                links: within("links", record.links, 1..=MAX_LINKS)?,
                rounds: within("rounds", record.rounds, 1..=u32::MAX)?,
                max_rounds: within("max-rounds", record.max_rounds, 1..=u32::MAX)?,
            },
            allow_cpu_mismatch: record.allow_cpu_mismatch,
            // Not stored: frames are kept only in the switchover, which comes before a resumption.
            no_keep_frames: false,
            // Not stored for the same reason.
            disks: DiskArgs::default(),
            quit_source: record.quit_source,
            domain: DomainOptions {
                undefine_source: record.undefine_source,
                persistent: record.persistent,
                autostart: record.autostart,
            },
            read_ahead,
            bench: BenchOptions {
                no_hot_first: record.no_hot_first,
                no_follow: record.no_follow,
                no_bound: record.no_bound,
                background_delay: record.background_delay_ms,
                no_drain: record.no_drain,
                // Not stored either: pre-copy comes before a resumption.
                log_ranges: None,
            },
            latency: LatencyOptions {
                poll: record.poll,
                no_priority: record.no_priority,
            },
        })
    }
}

impl From<&ReceiveOptions> for ReceiveOptionsRecord {
    fn from(options: &ReceiveOptions) -> Self {
        Self {
            shared: (&options.journaled).into(),
            fault_threads: options.fault_threads,
            collapse_bytes_per_s: options.collapse,
            poll: options.latency.poll,
            no_priority: options.latency.no_priority,
        }
    }
}

impl TryFrom<ReceiveOptionsRecord> for ReceiveOptions {
    type Error = RecordError;

    fn try_from(record: ReceiveOptionsRecord) -> Result<Self, RecordError> {
        let threads = 1..=MAX_FAULT_THREADS;
        Ok(Self {
            journaled: record.shared.try_into()?,
            fault_threads: within("fault-threads", record.fault_threads, threads)?,
            collapse: within("collapse", record.collapse_bytes_per_s, 1..=u64::MAX)?,
            latency: LatencyOptions {
                poll: record.poll,
                no_priority: record.no_priority,
            },
        })
    }
}

impl From<&JournaledOptions> for JournaledOptionsRecord {
    fn from(options: &JournaledOptions) -> Self {
        // The command line takes whole seconds.
        Self {
            allow_device: options.devices.allow_device.clone(),
            stall_timeout_s: options.stall_timeout.map(|time| time.as_secs()),
            retry_for_s: options.retry_for.map(|time| time.as_secs()),
        }
    }
}

impl TryFrom<JournaledOptionsRecord> for JournaledOptions {
    type Error = RecordError;

    fn try_from(record: JournaledOptionsRecord) -> Result<Self, RecordError> {
        let stall_timeout = within("stall-timeout", record.stall_timeout_s, 1..=3600)?;
        Ok(Self {
            devices: AllowDevice {
                allow_device: record.allow_device,
            },
            stall_timeout: stall_timeout.map(Duration::from_secs),
            retry_for: record.retry_for_s.map(Duration::from_secs),
        })
    }
}

impl From<WhenStalled> for WhenStalledTag {
    fn from(action: WhenStalled) -> Self {
        match action {
            WhenStalled::Continue => Self::Continue,
            WhenStalled::Switch => Self::Switch,
            WhenStalled::Stop => Self::Stop,
        }
    }
}

impl From<WhenStalledTag> for WhenStalled {
    fn from(tag: WhenStalledTag) -> Self {
        match tag {
            WhenStalledTag::Continue => Self::Continue,
            WhenStalledTag::Switch => Self::Switch,
            WhenStalledTag::Stop => Self::Stop,
        }
    }
}

impl From<ReadAhead> for ReadAheadRecord {
    fn from(read_ahead: ReadAhead) -> Self {
        match read_ahead {
            ReadAhead::Off => Self::Off,
            ReadAhead::Adaptive => Self::Adaptive,
            ReadAhead::Fixed(pages) => Self::Pages(pages),
        }
    }
}

impl TryFrom<ReadAheadRecord> for ReadAhead {
    type Error = RecordError;

    fn try_from(record: ReadAheadRecord) -> Result<Self, RecordError> {
        Ok(match record {
            ReadAheadRecord::Off => Self::Off,
            ReadAheadRecord::Adaptive => Self::Adaptive,
            ReadAheadRecord::Pages(pages) => {
                within("read-ahead", Some(pages), 1..=MAX_READ_AHEAD)?;
                Self::Fixed(pages)
            }
        })
    }
}

/// Refuses values that the command line refuses.
fn within<T: PartialOrd + Copy + Into<u64>>(
    option: &'static str,
    value: Option<T>,
    range: RangeInclusive<T>,
) -> Result<Option<T>, RecordError> {
    match value {
        Some(value) if !range.contains(&value) => Err(RecordError::OptionOutOfRange {
            option,
            value: value.into(),
        }),
        value => Ok(value),
    }
}
