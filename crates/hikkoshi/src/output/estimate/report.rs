//! The result of `hikkoshi estimate`, as `--json` writes it (`docs/json.md`).

use hikkoshi_account::{Mode, Predicted};
use hikkoshi_estimate::{Converges, Span};
use hikkoshi_pages::PAGE_BYTES;
use serde::Serialize;

use super::estimated::Estimated;

/// The result.
#[derive(Debug, Serialize)]
pub(crate) struct EstimateReport<'a> {
    pub(super) guest: GuestReport,
    pub(super) line: LineReport,
    pub(super) modes: Vec<ModeReport<'a>>,
    /// `null`: no mode is possible.
    pub(super) recommended: Option<RecommendedReport<'a>>,
    pub(super) notes: &'a [String],
}

#[derive(Debug, Serialize)]
pub(super) struct GuestReport {
    pub(super) pid: u32,
    pub(super) vcpus: u32,
    pub(super) devices: u32,
    pub(super) bytes: u64,
    /// Memory that is allocated on this host.
    pub(super) allocated_bytes: u64,
    /// Memory with something else than zeros.
    pub(super) content_bytes: Predicted,
    /// What background pages are sent as; `null`: as they are.
    pub(super) compression: Option<CompressionReport>,
    /// How long the writes were measured.
    pub(super) measured_seconds: f64,
    pub(super) dirtied_pages_per_second: f64,
    pub(super) working_sets: Vec<WorkingSetReport>,
    /// What measuring has cost, of one vCPU's time.
    pub(super) vcpu_share: f64,
}

#[derive(Debug, Serialize)]
pub(super) struct CompressionReport {
    pub(super) method: &'static str,
    /// What a page becomes.
    pub(super) page_bytes: f64,
}

#[derive(Debug, Serialize)]
pub(super) struct WorkingSetReport {
    pub(super) window_ms: f64,
    pub(super) pages: f64,
}

#[derive(Debug, Serialize)]
pub(super) struct LineReport {
    /// Otherwise it was given.
    pub(super) measured: bool,
    pub(super) bytes_per_second: Predicted,
    pub(super) round_trip_ms: Predicted,
    /// `null`: it was not measured.
    pub(super) probe_bytes: Option<u64>,
    pub(super) probe_ms: Option<f64>,
}

#[derive(Debug, Serialize)]
pub(super) struct ModeReport<'a> {
    pub(super) mode: Mode,
    pub(super) possible: bool,
    pub(super) obstacles: &'a [String],
    pub(super) converges: &'static str,
    pub(super) rounds: Predicted,
    pub(super) downtime_ms: Predicted,
    pub(super) total_ms: Predicted,
    pub(super) bytes: Predicted,
    pub(super) postcopy_ms: Predicted,
    pub(super) faults: Predicted,
    /// The part of the guest's time that it loses.
    pub(super) slowdown: Predicted,
}

#[derive(Debug, Serialize)]
pub(super) struct RecommendedReport<'a> {
    pub(super) mode: Mode,
    pub(super) reason: &'a str,
}

/// `span`, in a unit of which it has so many.
pub(crate) fn predicted(span: Span, unit: f64) -> Predicted {
    let finite = |value: f64| Some(value * unit).filter(|value| value.is_finite());
    Predicted {
        low: finite(span.low),
        likely: finite(span.likely),
        high: finite(span.high),
    }
}

impl<'a> EstimateReport<'a> {
    pub(crate) fn new(estimated: &'a Estimated) -> Self {
        let page = number(PAGE_BYTES);
        let Estimated {
            guest,
            line,
            measurement,
            ..
        } = estimated;
        let modes = estimated.modes.iter().map(|mode| {
            let prediction = &mode.prediction;
            ModeReport {
                mode: prediction.mode,
                possible: mode.obstacles.is_empty(),
                obstacles: &mode.obstacles,
                converges: match prediction.converges {
                    Converges::Yes => "yes",
                    Converges::Likely => "likely",
                    Converges::Unlikely => "unlikely",
                    Converges::No => "no",
                },
                rounds: predicted(prediction.rounds, 1.0),
                downtime_ms: predicted(prediction.downtime, 1e3),
                total_ms: predicted(prediction.total, 1e3),
                bytes: predicted(prediction.bytes, 1.0),
                postcopy_ms: predicted(prediction.postcopy, 1e3),
                faults: predicted(prediction.faults, 1.0),
                slowdown: predicted(prediction.slowdown, 1.0),
            }
        });
        let windows = measurement.total.windows.iter();
        Self {
            guest: GuestReport {
                pid: estimated.pid,
                vcpus: guest.vcpus,
                devices: guest.devices,
                bytes: guest.pages * PAGE_BYTES,
                allocated_bytes: estimated.content.allocated * PAGE_BYTES,
                content_bytes: predicted(guest.data_pages, page),
                compression: guest.compression.map(|it| CompressionReport {
                    method: it.method.name(),
                    page_bytes: it.page_bytes,
                }),
                measured_seconds: measurement.elapsed.as_secs_f64(),
                dirtied_pages_per_second: measurement.total.pages_per_second.mean,
                working_sets: windows
                    .map(|window| WorkingSetReport {
                        window_ms: window.mean_length.as_secs_f64() * 1e3,
                        pages: window.mean,
                    })
                    .collect(),
                vcpu_share: measurement.cost.share,
            },
            line: LineReport {
                measured: estimated.probed.is_some(),
                bytes_per_second: predicted(line.rate, 1.0),
                round_trip_ms: predicted(line.round_trip, 1e3),
                probe_bytes: estimated.probed.map(|(bytes, _)| bytes),
                probe_ms: estimated.probed.map(|(_, time)| time.as_secs_f64() * 1e3),
            },
            modes: modes.collect(),
            recommended: estimated.choice.as_ref().map(|choice| RecommendedReport {
                mode: choice.mode,
                reason: &choice.reason,
            }),
            notes: &estimated.notes,
        }
    }
}

/// Exact below 2^53.
#[allow(clippy::cast_precision_loss)]
fn number(number: u64) -> f64 {
    number as f64
}
