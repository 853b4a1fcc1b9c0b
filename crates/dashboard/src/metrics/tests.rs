//! Values of all metrics, and their bounds.

use hikkoshi_account::{Converges, Side, State};
use hikkoshi_status::{Recorder, StatusRecord};

use super::*;
use crate::examples::{disks_state, end, migration, precopy_state, state};
use crate::follow::Migrations;

fn text(migrations: &Migrations) -> String {
    migrations.view(|view| metrics(&view))
}

/// Adds a migration with a state, under a name of its own.
fn add(migrations: &Migrations, side: Side, number: u32) -> String {
    let migration = migration(side, number, 4);
    let name = format!("{side:?}-{number}");
    let state = state(&migration, 3000);
    let recording = Recorder::new(migration).recording().clone();
    migrations.apply(&name, StatusRecord::Recording(Box::new(recording)));
    migrations.apply(&name, StatusRecord::State(Box::new(state)));
    name
}

/// Samples of a text, without comments.
fn samples(text: &str) -> Vec<&str> {
    text.lines().filter(|line| !line.starts_with('#')).collect()
}

/// The metrics of one migration whose state is this: values by name and labels, without those that
/// all migrations have.
fn metrics_of(side: Side, state: impl Fn(&hikkoshi_status::Migration, u64) -> State) -> String {
    let migrations = Migrations::new(&["moved"]);
    let migration = migration(side, 7, 4);
    let state = state(&migration, 3000);
    let recording = Recorder::new(migration).recording().clone();
    migrations.apply("one", StatusRecord::Recording(Box::new(recording)));
    migrations.apply("one", StatusRecord::State(Box::new(state)));
    text(&migrations)
}

/// These samples are there.
fn assert_values(text: &str, side: &str, values: &[(&str, &str, &str)]) {
    let id = format!("id=\"00000007000000000000000000000000\",side=\"{side}\"");
    for (name, labels, value) in values {
        let sample = format!("hikkoshi_migration_{name}{{{id}{labels}}} {value}");
        assert!(samples(text).contains(&&*sample), "{sample}\n{text}");
    }
}

/// What a side does not know has no samples: a zero would be a value.
fn assert_absent(text: &str, names: &[&str]) {
    for name in names {
        let begin = format!("hikkoshi_migration_{name}");
        let found = samples(text)
            .into_iter()
            .find(|line| line.starts_with(&begin));
        assert_eq!(found, None, "{text}");
    }
}

#[test]
fn each_metric_has_the_value_of_the_destination() {
    let text = metrics_of(Side::Destination, state);
    assert_values(
        &text,
        "destination",
        &[
            ("start_time_seconds", "", "1700000007"),
            ("running", "", "1"),
            ("engine_lost", "", "0"),
            ("elapsed_seconds", "", "3"),
            ("memory_bytes", "", "8388608"),
            ("phase", ",phase=\"postcopy\"", "1"),
            ("phase", ",phase=\"precopy\"", "0"),
            ("stage", ",stage=\"running\"", "1"),
            ("stage", ",stage=\"ready\"", "0"),
            ("guest_at", ",place=\"destination\"", "1"),
            ("guest_at", ",place=\"source\"", "0"),
            ("phase_progress_ratio", "", "0.25"),
            ("pages_total", ",kind=\"precopy\"", "1001"),
            ("pages_total", ",kind=\"zero\"", "1002"),
            ("pages_total", ",kind=\"urgent\"", "1003"),
            ("pages_total", ",kind=\"background\"", "1004"),
            ("bytes_total", ",kind=\"precopy\"", "2001"),
            ("bytes_total", ",kind=\"urgent\"", "2002"),
            ("bytes_total", ",kind=\"background\"", "2003"),
            ("bytes_total", ",kind=\"device_state\"", "2004"),
            ("bytes_total", ",kind=\"disks\"", "2005"),
            ("time_left_seconds", ",estimate=\"low\"", "1.5"),
            ("time_left_seconds", ",estimate=\"likely\"", "2.5"),
            ("time_left_seconds", ",estimate=\"high\"", "+Inf"),
            ("missing_pages", "", "4001"),
            ("waiting_requests", "", "4002"),
            ("downtime_seconds", "", "0.0125"),
            ("outages_total", "", "2"),
            ("outage_seconds", "", "1.5"),
            ("request_latency_seconds_bucket", ",le=\"0.000016\"", "10"),
            ("request_latency_seconds_bucket", ",le=\"0.000032\"", "10"),
            ("request_latency_seconds_bucket", ",le=\"0.000064\"", "60"),
            ("request_latency_seconds_bucket", ",le=\"0.000512\"", "60"),
            ("request_latency_seconds_bucket", ",le=\"0.001024\"", "100"),
            ("request_latency_seconds_bucket", ",le=\"16.777216\"", "110"),
            ("request_latency_seconds_bucket", ",le=\"+Inf\"", "110"),
            ("request_latency_seconds_count", "", "110"),
            ("request_latency_seconds_sum", "", "0.022"),
            ("request_latency_max_seconds", "", "0.0019"),
        ],
    );
    assert_absent(&text, &OF_SOURCES);
    let info = "hikkoshi_migration_info{id=\"00000007000000000000000000000000\",\
                side=\"destination\",guest=\"web\",mode=\"hybrid\",host=\"host-a\",\
                peer=\"host-b:7000\"} 1";
    assert!(samples(&text).contains(&info), "{text}");
    assert!(samples(&text).contains(&"hikkoshi_migrations{state=\"running\"} 1"));
}

/// What only sources know.
const OF_SOURCES: [&str; 6] = [
    "disk_",
    "max_downtime_seconds",
    "rounds_total",
    "resent_pages_total",
    "dirty_pages_per_second",
    "converges",
];

#[test]
fn copied_disks_have_metrics() {
    let text = metrics_of(Side::Source, disks_state);
    assert_values(
        &text,
        "source",
        &[
            ("phase", ",phase=\"disks\"", "1"),
            ("phase", ",phase=\"connecting\"", "0"),
            ("disk_copied_bytes_total", ",disk=\"vda\"", "5005"),
            ("disk_copied_bytes_total", ",disk=\"vdb\"", "1005"),
            ("disk_bytes", ",disk=\"vdb\"", "5005"),
            ("disk_in_sync", ",disk=\"vda\"", "1"),
            ("disk_in_sync", ",disk=\"vdb\"", "0"),
        ],
    );
    let ratio = format!("}} {}", 6010.0 / 10010.0);
    let progress = samples(&text)
        .into_iter()
        .find(|line| line.starts_with("hikkoshi_migration_phase_progress_ratio{"))
        .unwrap();
    assert!(progress.ends_with(&ratio), "{progress}");
}

/// Names come from the guest's owner: series must differ all the same.
#[test]
fn disks_with_the_same_name_have_series_of_their_own() {
    let text = metrics_of(Side::Source, |migration, at_ms| {
        let mut state = disks_state(migration, at_ms);
        let disk = state.disks[0].clone();
        state.disks = vec![disk; 40];
        state
    });
    let begin = "hikkoshi_migration_disk_in_sync{";
    let found: BTreeSet<_> = samples(&text)
        .into_iter()
        .filter(|line| line.starts_with(begin))
        .collect();
    assert_eq!(found.len(), 32, "{found:?}");
    assert_values(&text, "source", &[("disk_in_sync", ",disk=\"1 vda\"", "1")]);
}

/// What only destinations know.
const OF_DESTINATIONS: [&str; 2] = ["waiting_requests", "request_latency"];

#[test]
fn each_metric_has_the_value_of_the_source() {
    let text = metrics_of(Side::Source, precopy_state);
    assert_values(
        &text,
        "source",
        &[
            ("max_downtime_seconds", "", "0.3"),
            ("phase", ",phase=\"precopy\"", "1"),
            ("stage", ",stage=\"owned\"", "1"),
            ("phase_progress_ratio", "", "0.25"),
            ("rounds_total", "", "3"),
            ("resent_pages_total", "", "1005"),
            ("compressed_content_bytes_total", ",method=\"zstd\"", "3000"),
            ("compressed_sent_bytes_total", ",method=\"zstd\"", "1005"),
            ("dirty_pages_per_second", "", "3002.5"),
            ("converges", ",answer=\"yes\"", "1"),
            ("converges", ",answer=\"no\"", "0"),
            ("converges", ",answer=\"switches\"", "0"),
            ("converges", ",answer=\"unknown\"", "0"),
        ],
    );
    assert_absent(&text, &OF_DESTINATIONS);
    assert_absent(&text, &["missing_pages", "downtime_seconds"]);

    // In post-copy it is still known how many rounds there were.
    let text = metrics_of(Side::Source, state);
    let values = [("rounds_total", "", "3"), ("missing_pages", "", "4001")];
    assert_values(&text, "source", &values);
    assert_absent(&text, &OF_DESTINATIONS);
    assert_absent(&text, &["dirty_pages_per_second", "converges"]);
}

#[test]
fn what_is_not_known_is_not_a_zero() {
    let text = metrics_of(Side::Destination, precopy_state);
    assert_absent(&text, &OF_SOURCES);
    assert_absent(&text, &["phase_progress_ratio", "time_left_seconds"]);
    // Another engine began the migration.
    let text = metrics_of(Side::Source, |migration, at_ms| {
        let mut resumed = state(migration, at_ms);
        resumed.repeats = None;
        resumed
    });
    assert_absent(&text, &["resent_pages_total"]);
    let migrations = Migrations::new(&["moved"]);
    let mut resumed = migration(Side::Source, 7, 4);
    resumed.resumed = true;
    let mut further = state(&resumed, 3000);
    further.rounds.clear();
    let recording = Recorder::new(resumed).recording().clone();
    migrations.apply("one", StatusRecord::Recording(Box::new(recording)));
    migrations.apply("one", StatusRecord::State(Box::new(further)));
    assert_absent(&self::text(&migrations), &["rounds_total"]);
}

/// It is not an alarm: post-copy follows by itself.
#[test]
fn pre_copy_that_switches_is_not_one_that_does_not_converge() {
    let text = metrics_of(Side::Source, |migration, at_ms| {
        let mut switches = precopy_state(migration, at_ms);
        switches.converges = Some(Converges::Switches);
        switches
    });
    let values = [
        ("converges", ",answer=\"switches\"", "1"),
        ("converges", ",answer=\"no\"", "0"),
    ];
    assert_values(&text, "source", &values);
}

/// All families have a sample once there is a migration in each phase, and one that has ended.
#[test]
fn each_family_has_samples_and_is_written_once() {
    let migrations = Migrations::new(&["moved"]);
    add(&migrations, Side::Destination, 1);
    let source = add(&migrations, Side::Source, 2);
    migrations.apply(&source, StatusRecord::End(end(4, "guest_lost")));
    let begun = migration(Side::Source, 3, 4);
    let precopy = precopy_state(&begun, 3000);
    let recording = Recorder::new(begun).recording().clone();
    migrations.apply("begun", StatusRecord::Recording(Box::new(recording)));
    migrations.apply("begun", StatusRecord::State(Box::new(precopy)));
    let text = text(&migrations);
    for family in FAMILIES {
        let begins = |line: &&&str| {
            line.starts_with(&format!("{}{{", family.name))
                || line.starts_with(&format!("{} ", family.name))
                || line.starts_with(&format!("{}_bucket{{", family.name))
        };
        let samples = samples(&text);
        assert!(samples.iter().any(|line| begins(&line)), "{}", family.name);
        let help = format!("# HELP {} ", family.name);
        assert_eq!(text.matches(&help).count(), 1, "{}", family.name);
    }
    let mut seen = BTreeSet::new();
    for sample in samples(&text) {
        let series = sample.rsplit_once(' ').unwrap().0;
        assert!(seen.insert(series), "{series} has two values");
    }
}

#[test]
fn ends_are_counted_once_and_stay_counted() {
    let migrations = Migrations::new(&["moved"]);
    for number in 0..3 {
        let name = add(&migrations, Side::Source, number);
        migrations.apply(&name, StatusRecord::End(end(0, "moved")));
        migrations.apply(&name, StatusRecord::End(end(0, "moved")));
    }
    let lost = add(&migrations, Side::Source, 9);
    migrations.lose_killed(&lost);
    // The folder has none of them any more.
    for _ in 0..10 {
        migrations.listed(&BTreeSet::new());
    }
    let text = text(&migrations);
    for sample in [
        "hikkoshi_migrations_ended_total{side=\"source\",reason=\"moved\"} 3",
        "hikkoshi_migrations_ended_total{side=\"source\",reason=\"engine_lost\"} 1",
        "hikkoshi_migrations{state=\"ended\"} 0",
    ] {
        assert!(samples(&text).contains(&sample), "{sample}\n{text}");
    }
}

/// It was stopped for a while, and could not be read.
#[test]
fn an_engine_that_was_silent_is_counted_when_it_ends() {
    let migrations = Migrations::new(&["moved"]);
    let name = add(&migrations, Side::Source, 1);
    migrations.lose(&name, "it sends nothing");
    let counts = |lost: u8, moved: u8| {
        let text = text(&migrations);
        for (reason, count) in [("engine_lost", lost), ("moved", moved)] {
            let sample = format!(
                "hikkoshi_migrations_ended_total{{side=\"source\",reason=\"{reason}\"}} {count}"
            );
            assert!(samples(&text).contains(&&*sample), "{sample}\n{text}");
        }
    };
    counts(0, 0);
    migrations.apply(&name, StatusRecord::End(end(0, "moved")));
    counts(0, 1);
}

#[test]
fn reasons_are_bounded() {
    let migrations = Migrations::new(&["moved"]);
    for number in 0..200 {
        let name = add(&migrations, Side::Source, number);
        migrations.apply(
            &name,
            StatusRecord::End(end(1, &format!("reason_{number}"))),
        );
    }
    let text = text(&migrations);
    let ended = "hikkoshi_migrations_ended_total{";
    let reasons: Vec<_> = samples(&text)
        .into_iter()
        .filter(|line| line.starts_with(ended))
        .collect();
    // Those that are known from the beginning have no end here.
    let reasons: Vec<_> = reasons
        .into_iter()
        .filter(|it| !it.ends_with(" 0"))
        .collect();
    assert_eq!(reasons.len(), 65);
    let other = format!("{ended}side=\"source\",reason=\"other\"}} 136");
    assert!(reasons.contains(&&*other), "{reasons:?}");
}

/// So that the first end is an increase.
#[test]
fn ends_are_counted_from_zero() {
    let text = text(&Migrations::new(&["moved", "guest_lost"]));
    for side in ["source", "destination"] {
        for reason in ["moved", "guest_lost", "engine_lost"] {
            let sample =
                format!("hikkoshi_migrations_ended_total{{side=\"{side}\",reason=\"{reason}\"}} 0");
            assert!(samples(&text).contains(&&*sample), "{sample}\n{text}");
        }
    }
}

#[test]
fn only_the_newest_migrations_have_metrics() {
    let migrations = Migrations::new(&["moved"]);
    for number in 0..100 {
        // The side with more metrics.
        add(&migrations, Side::Destination, number);
    }
    let text = text(&migrations);
    // As docs/dashboard.md says.
    assert!(samples(&text).len() < 4400, "{}", samples(&text).len());
    let infos = text.matches("\nhikkoshi_migration_info{").count();
    assert_eq!(infos, MAX_MIGRATIONS);
    assert!(text.contains("id=\"00000063"), "number 99 is the newest");
    assert!(!text.contains("id=\"00000000"));
}

#[test]
fn a_migration_that_runs_has_metrics_although_ended_ones_are_newer() {
    let migrations = Migrations::new(&["moved"]);
    add(&migrations, Side::Source, 0);
    for number in 1..100 {
        let name = add(&migrations, Side::Source, number);
        migrations.apply(&name, StatusRecord::End(end(0, "moved")));
    }
    let text = text(&migrations);
    let infos = text.matches("\nhikkoshi_migration_info{").count();
    assert_eq!(infos, MAX_MIGRATIONS);
    assert!(text.contains("id=\"00000000"), "the one that runs");
    assert!(text.contains("id=\"00000063"), "the newest that has ended");
    assert!(!text.contains("id=\"00000001"), "the oldest that has ended");
}

/// Several engines on the same side, one after another.
#[test]
fn a_resumed_migration_has_one_set_of_metrics() {
    let migrations = Migrations::new(&["moved"]);
    let killed = add(&migrations, Side::Source, 5);
    migrations.lose_killed(&killed);
    let mut resumed = migration(Side::Source, 5, 4);
    resumed.started_unix_ms += 10_000;
    resumed.pid += 1;
    resumed.resumed = true;
    resumed.guest = "resumed".into();
    let mut further = state(&resumed, 2000);
    further.downtime_ms = None;
    let recording = Recorder::new(resumed).recording().clone();
    migrations.apply("resumed", StatusRecord::Recording(Box::new(recording)));
    migrations.apply("resumed", StatusRecord::State(Box::new(further)));
    let text = text(&migrations);
    assert_eq!(text.matches("\nhikkoshi_migration_info{").count(), 1);
    assert!(text.contains("guest=\"resumed\""));
    // It has what both engines have done, since the first one began.
    let id = "id=\"00000005000000000000000000000000\",side=\"source\"";
    for (name, labels, value) in [
        ("engine_lost", "", "0"),
        ("start_time_seconds", "", "1700000005"),
        ("elapsed_seconds", "", "12"),
        ("pages_total", ",kind=\"urgent\"", "2006"),
        ("bytes_total", ",kind=\"background\"", "4006"),
        ("downtime_seconds", "", "0.0125"),
        // The last one of the first engine lasted until the second one had links.
        ("outages_total", "", "3"),
    ] {
        let sample = format!("hikkoshi_migration_{name}{{{id}{labels}}} {value}");
        assert!(samples(&text).contains(&&*sample), "{sample}\n{text}");
    }
}

#[test]
fn text_of_other_programs_cannot_add_metrics() {
    let migrations = Migrations::new(&["moved"]);
    let mut hostile = migration(Side::Source, 1, 4);
    hostile.guest = "a\"} 1\nhikkoshi_migrations{state=\"running\"} 99\n# \\".into();
    hostile.host = "x".repeat(100_000);
    let recording = Recorder::new(hostile).recording().clone();
    migrations.apply("hostile", StatusRecord::Recording(Box::new(recording)));
    let text = text(&migrations);
    let guest = r#"guest="a\"} 1\nhikkoshi_migrations{state=\"running\"} 99\n# \\""#;
    assert!(text.contains(guest), "{text}");
    assert!(text.lines().all(|line| line.len() < 1000));
    let running = samples(&text);
    assert!(!running.contains(&"hikkoshi_migrations{state=\"running\"} 99"));
}
