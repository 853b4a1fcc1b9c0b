//! The metrics: names, types and meanings, and where their values are.

use hikkoshi_account::{Converges, GuestAt, Phase, Side, Stage};

use super::family::{Family, family};
use super::samples::{
    by_kind, flag, is_destination, labelled, latency, milliseconds, of_compression, of_disks,
    of_set, of_side, of_state, one,
};
use super::shown_migration::ShownMigration;
use super::text::{MetricKind, count_value};

/// All metrics, in the order of `/metrics`.
pub const FAMILIES: &[Family] = &[
    family(
        "hikkoshi_migrations",
        MetricKind::Gauge,
        "Migrations in the status folder, by `state`: running, ended, or lost (the engine was \
         killed, or cannot be read).",
        |out, view, _| {
            let count = |state| {
                let known = view.entries.values();
                count_value(known.filter(|known| state_of(known) == Some(state)).count() as u64)
            };
            for state in ["running", "ended", "lost"] {
                out.sample(&[("state", state)], count(state));
            }
        },
    ),
    family(
        "hikkoshi_migrations_ended_total",
        MetricKind::Counter,
        "Migrations that have ended, and engines that were killed, since the dashboard was started, \
         by `side` and `reason`: engine_lost, or a reason of docs/json.md.",
        |out, view, _| {
            for ((of, reason), count) in view.ended {
                out.sample(
                    &[("side", of.name()), ("reason", reason)],
                    count_value(*count),
                );
            }
        },
    ),
    family(
        "hikkoshi_migration_info",
        MetricKind::Gauge,
        "Always 1. The labels `id` and `side` are those of the other metrics; `guest`, `mode`, \
         `host` and `peer` describe the migration.",
        |out, _, migrations| {
            for it in migrations {
                let migration = &it.recording.migration;
                let labels = [
                    ("id", &*it.id()),
                    ("side", it.side()),
                    ("guest", &*migration.guest),
                    ("mode", migration.mode_name()),
                    ("host", &*migration.host),
                    ("peer", &*migration.peer),
                ];
                out.sample(&labels, 1.0);
            }
        },
    ),
    family(
        "hikkoshi_migration_start_time_seconds",
        MetricKind::Gauge,
        "When the migration began: seconds since 1970.",
        |out, _, migrations| {
            one(out, migrations, |it| {
                Some(milliseconds(it.recording.migration.started_unix_ms))
            });
        },
    ),
    family(
        "hikkoshi_migration_running",
        MetricKind::Gauge,
        "1 while the migration is in progress, 0 when it has ended or its engine was killed.",
        |out, _, migrations| one(out, migrations, |it| Some(flag(!it.known.is_over()))),
    ),
    family(
        "hikkoshi_migration_engine_lost",
        MetricKind::Gauge,
        "1 if the engine was killed or cannot be read, else 0.",
        |out, _, migrations| one(out, migrations, |it| Some(flag(it.known.lost().is_some()))),
    ),
    family(
        "hikkoshi_migration_exit_status",
        MetricKind::Gauge,
        "The exit status of an engine that has ended: 0 the guest has moved, 1 it stays at the \
         source, 3 it is handed over and not complete, 4 it is lost.",
        |out, _, migrations| {
            one(out, migrations, |it| {
                let end = it.recording.end.as_ref()?;
                Some(f64::from(end.exit_status))
            });
        },
    ),
    family(
        "hikkoshi_migration_elapsed_seconds",
        MetricKind::Gauge,
        "How long the migration takes, or took.",
        |out, _, migrations| {
            one(out, migrations, |it| {
                let end = it.recording.end.as_ref().map(|end| end.at_ms);
                Some(milliseconds(end.or(it.state.map(|state| state.at_ms))?))
            });
        },
    ),
    family(
        "hikkoshi_migration_memory_bytes",
        MetricKind::Gauge,
        "The guest's memory.",
        |out, _, migrations| {
            one(out, migrations, |it| {
                let memory = &it.recording.migration.memory;
                Some(count_value(memory.pages.saturating_mul(memory.page_bytes)))
            });
        },
    ),
    family(
        "hikkoshi_migration_max_downtime_seconds",
        MetricKind::Gauge,
        "The limit of the downtime, at the source, if there is one.",
        |out, _, migrations| {
            one(out, migrations, |it| {
                it.recording
                    .migration
                    .limits
                    .max_downtime_ms
                    .map(milliseconds)
            });
        },
    ),
    family(
        "hikkoshi_migration_phase",
        MetricKind::Gauge,
        "1 for the present `phase`, 0 for the others: connecting, disks (they are copied), precopy, \
         switchover, postcopy.",
        |out, _, migrations| {
            of_set(
                out,
                migrations,
                "phase",
                |_| Phase::ALL.map(Phase::name).to_vec(),
                |state| state.phase.name(),
            );
        },
    ),
    family(
        "hikkoshi_migration_stage",
        MetricKind::Gauge,
        "1 for the recorded `stage` of the handover, 0 for the others: owned, committed, \
         handed_over, done at the source; receiving, ready, running, declined, complete at the \
         destination.",
        |out, _, migrations| of_set(out, migrations, "stage", stages, |state| state.stage.name()),
    ),
    family(
        "hikkoshi_migration_guest_at",
        MetricKind::Gauge,
        "1 for the `place` of the guest as far as this side knows, 0 for the others: source, \
         paused, destination.",
        |out, _, migrations| {
            of_set(
                out,
                migrations,
                "place",
                |_| GuestAt::ALL.map(GuestAt::name).to_vec(),
                |state| state.guest_at.name(),
            );
        },
    ),
    family(
        "hikkoshi_migration_phase_progress_ratio",
        MetricKind::Gauge,
        "The part of the present round or phase that is done: of its pages, or of the disks' bytes.",
        |out, _, migrations| {
            of_state(out, migrations, |state| {
                let progress = state.progress()?;
                Some(count_value(progress.done) / count_value(progress.total))
            });
        },
    ),
    family(
        "hikkoshi_migration_rounds_total",
        MetricKind::Counter,
        "Rounds of pre-copy that have begun, at the source.",
        |out, _, migrations| one(out, migrations, rounds),
    ),
    family(
        "hikkoshi_migration_pages_total",
        MetricKind::Counter,
        "Pages that were sent or have arrived, by `kind`: precopy (repeats included), zero (as a \
         mark), urgent (requested), background (in post-copy without a request).",
        |out, _, migrations| {
            by_kind(out, migrations, |state| {
                let pages = &state.pages;
                vec![
                    ("precopy", pages.precopy),
                    ("zero", pages.zero),
                    ("urgent", pages.urgent),
                    ("background", pages.background),
                ]
            });
        },
    ),
    family(
        "hikkoshi_migration_resent_pages_total",
        MetricKind::Counter,
        "Pages that were sent again in pre-copy, because the guest had written to them, at the \
         source, unless it resumed the migration.",
        |out, _, migrations| {
            of_side(out, migrations, Side::Source, |state| {
                Some(count_value(state.repeats?.precopy.pages))
            });
        },
    ),
    family(
        "hikkoshi_migration_bytes_total",
        MetricKind::Counter,
        "Bytes on the links, by `kind`: precopy, urgent, background, device_state, disks.",
        |out, _, migrations| {
            by_kind(out, migrations, |state| {
                let bytes = &state.bytes;
                vec![
                    ("precopy", bytes.precopy),
                    ("urgent", bytes.urgent),
                    ("background", bytes.background),
                    ("device_state", bytes.device_state),
                    ("disks", bytes.disks.unwrap_or(0)),
                ]
            });
        },
    ),
    family(
        "hikkoshi_migration_compressed_content_bytes_total",
        MetricKind::Counter,
        "Bytes of pages that were sent, or have arrived, compressed, by `method`: \
         lz4, zstd.",
        |out, _, migrations| of_compression(out, migrations, |compressed| compressed.content_bytes),
    ),
    family(
        "hikkoshi_migration_compressed_sent_bytes_total",
        MetricKind::Counter,
        "Bytes that were sent, or have arrived, instead of these pages, by `method`: \
         lz4, zstd.",
        |out, _, migrations| of_compression(out, migrations, |compressed| compressed.sent_bytes),
    ),
    family(
        "hikkoshi_migration_disk_copied_bytes_total",
        MetricKind::Counter,
        "Bytes of the disk that are copied, by `disk`, at the source: of each disk that is copied.",
        |out, _, migrations| of_disks(out, migrations, |disk| count_value(disk.copied_bytes)),
    ),
    family(
        "hikkoshi_migration_disk_bytes",
        MetricKind::Gauge,
        "Bytes of the disk to copy, by `disk`, at the source.",
        |out, _, migrations| of_disks(out, migrations, |disk| count_value(disk.total_bytes)),
    ),
    family(
        "hikkoshi_migration_disk_in_sync",
        MetricKind::Gauge,
        "1 if the disk has the same content at both sides, and each write of the guest reaches \
         both, else 0, by `disk`, at the source.",
        |out, _, migrations| of_disks(out, migrations, |disk| flag(disk.in_sync)),
    ),
    family(
        "hikkoshi_migration_dirty_pages_per_second",
        MetricKind::Gauge,
        "Pages that the guest dirties per second, at the source in pre-copy from the end of the \
         first round on.",
        |out, _, migrations| of_state(out, migrations, |state| state.dirty_pages_per_second),
    ),
    family(
        "hikkoshi_migration_time_left_seconds",
        MetricKind::Gauge,
        "How long the migration still takes, by `estimate`: low, likely, high (+Inf: it may not \
         end). Without a value it is not known, or pre-copy does not converge.",
        |out, _, migrations| {
            for it in migrations.iter().filter(|it| !it.known.is_over()) {
                let Some(left) = it.state.and_then(|state| state.time_left) else {
                    continue;
                };
                let high = left.high_s.unwrap_or(f64::INFINITY);
                for (estimate, value) in [
                    ("low", left.low_s),
                    ("likely", left.likely_s),
                    ("high", high),
                ] {
                    labelled(out, it, "estimate", estimate, value);
                }
            }
        },
    ),
    family(
        "hikkoshi_migration_converges",
        MetricKind::Gauge,
        "Whether pre-copy ends by itself: 1 for this `answer`, of yes, no, switches (to post-copy, \
         after --max-rounds), unknown. At the source, in pre-copy without post-copy.",
        |out, _, migrations| {
            for it in migrations.iter().filter(|it| !it.known.is_over()) {
                let Some(converges) = it.state.and_then(|state| state.converges) else {
                    continue;
                };
                for answer in Converges::ALL {
                    labelled(out, it, "answer", answer.name(), flag(converges == answer));
                }
            }
        },
    ),
    family(
        "hikkoshi_migration_missing_pages",
        MetricKind::Gauge,
        "Pages that are missing at the destination, or not sent yet at the source, in post-copy.",
        |out, _, migrations| {
            of_state(out, migrations, |state| {
                state.missing_pages.map(count_value)
            });
        },
    ),
    family(
        "hikkoshi_migration_waiting_requests",
        MetricKind::Gauge,
        "Page requests without an answer, at the destination.",
        |out, _, migrations| {
            of_side(out, migrations, Side::Destination, |state| {
                Some(count_value(state.waiting_pages))
            });
        },
    ),
    family(
        "hikkoshi_migration_downtime_seconds",
        MetricKind::Gauge,
        "How long the guest has been paused; grows until it runs again. At the source an upper \
         bound: until the destination has reported that the guest runs. At the destination a lower \
         bound: from the first message after the device state. Without a value it was not paused \
         yet.",
        |out, _, migrations| {
            of_state(out, migrations, |state| Some(state.downtime_ms? / 1e3));
        },
    ),
    family(
        "hikkoshi_migration_likely_downtime_seconds",
        MetricKind::Gauge,
        "How long the guest likely was paused, at the source, when it runs again. Without a value \
         the destination has not reported when that was.",
        |out, _, migrations| {
            of_state(out, migrations, |state| {
                Some(state.likely_downtime_ms? / 1e3)
            });
        },
    ),
    family(
        "hikkoshi_migration_outages_total",
        MetricKind::Counter,
        "Times without links after the handover, up to 100.",
        |out, _, migrations| {
            of_state(out, migrations, |state| {
                Some(count_value(state.outages.len() as u64))
            });
        },
    ),
    family(
        "hikkoshi_migration_outage_seconds",
        MetricKind::Gauge,
        "How long there have been no links now, from the last sign of the other side on (data, or at \
         the source an acknowledgement); 0 while they are up.",
        |out, _, migrations| {
            of_state(out, migrations, |state| {
                let lasted = state.outage().map(|outage| outage.lasts_ms(state.at_ms));
                Some(milliseconds(lasted.unwrap_or(0)))
            });
        },
    ),
    family(
        "hikkoshi_migration_request_latency_seconds",
        MetricKind::Histogram,
        "The latency of page requests, from the fault to the installed page, at the destination.",
        |out, _, migrations| {
            let destinations = migrations.iter().filter(|it| is_destination(it));
            for it in destinations {
                if let Some(state) = it.state {
                    let labels = [("id", &*it.id()), ("side", it.side())];
                    latency(out, &labels, &state.requests);
                }
            }
        },
    ),
    family(
        "hikkoshi_migration_request_latency_max_seconds",
        MetricKind::Gauge,
        "The latency of the slowest page request, at the destination.",
        |out, _, migrations| {
            one(out, migrations, |it| {
                let requests = &it.state.filter(|_| is_destination(it))?.requests;
                (requests.count > 0).then_some(requests.max / 1e6)
            });
        },
    ),
    family(
        "hikkoshi_dashboard_status_folder_readable",
        MetricKind::Gauge,
        "1 if the dashboard can read the status folder or there is none, else 0.",
        |out, view, _| out.sample(&[], flag(view.folder_is_readable)),
    ),
    family(
        "hikkoshi_dashboard_event_streams",
        MetricKind::Gauge,
        "Open pages and other readers of /events.",
        |out, view, _| out.sample(&[], count_value(view.subscribers as u64)),
    ),
    family(
        "hikkoshi_build_info",
        MetricKind::Gauge,
        "Always 1. The label `version` is that of hikkoshi.",
        |out, _, _| out.sample(&[("version", env!("CARGO_PKG_VERSION"))], 1.0),
    ),
];

/// The stages of a side, as the handover's records name them.
fn stages(side: Side) -> Vec<&'static str> {
    Stage::all(side).into_iter().map(Stage::name).collect()
}

/// Rounds so far. `None`: not known, because this is the destination, or another engine had them.
fn rounds(it: &ShownMigration<'_>) -> Option<f64> {
    let state = it.state.filter(|_| !is_destination(it))?;
    // The state has the present round in pre-copy only.
    let last = state.rounds.last().map_or(0, |round| round.round);
    let rounds = last.max(state.round);
    (rounds > 0 || !it.recording.migration.resumed).then(|| f64::from(rounds))
}

/// Running, ended or lost. `None`: nothing was read yet.
fn state_of(known: &crate::follow::Known) -> Option<&'static str> {
    if known.lost().is_some() {
        return Some("lost");
    }
    let ended = known.short()?.end.is_some();
    Some(if ended { "ended" } else { "running" })
}
