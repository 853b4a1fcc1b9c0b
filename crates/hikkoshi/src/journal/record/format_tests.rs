//! The stored form does not change unnoticed: kept files of the current version are read, and are
//! written byte for byte as they were kept.
//!
//! Files `*-certified`, `*-inviting` and `*-invited` were written during a migration. These tests
//! wrote `*-full`, which has every field, and `source-domain`.

use std::num::{NonZeroU16, NonZeroU64};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use clap::Parser;
use error_reporter::Report;
use hikkoshi_engine::{Compression, Mode, ReadAhead};
use hikkoshi_handover::{DestinationStage, SourceStage};
use hikkoshi_qemu::RamIdentity;
use hikkoshi_qemu::qmp::MonitorAddress;
use hikkoshi_wire::CompressionMethod;
use serde_json::Value;

use super::{READABLE, RecordError, VERSION, decode, encode};
use crate::args::{
    Args, Command, DomainOptions, LinkOptions, MigrateOptions, ReceiveOptions, WhenStalled,
};
use crate::journal::entry::{DestinationEntry, JournalEntry, SourceEntry};

fn path(name: &str) -> PathBuf {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/journals");
    PathBuf::from(folder).join(format!("{name}.json"))
}

fn kept(name: &str) -> Vec<u8> {
    std::fs::read(path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn source(name: &str) -> SourceEntry {
    decode::<SourceEntry>(&kept(name)).unwrap_or_else(|e| panic!("{name}: {}", Report::new(&e)))
}

fn destination(name: &str) -> DestinationEntry {
    decode::<DestinationEntry>(&kept(name))
        .unwrap_or_else(|e| panic!("{name}: {}", Report::new(&e)))
}

/// A change of what is written fails here: see the documentation of `record`.
fn is_written_as_kept(name: &str, entry: &impl JournalEntry) {
    let written = String::from_utf8(encode(entry).unwrap()).unwrap();
    let kept = String::from_utf8(kept(name)).unwrap();
    assert_eq!(
        written, kept,
        "the stored form of {name} has changed: it needs a new version"
    );
}

fn all_migrate_options() -> MigrateOptions {
    MigrateOptions {
        link: link_options(),
        links: 3,
        bandwidth_bytes_per_s: NonZeroU64::new(50_000_000),
        compression: Compression::Always(CompressionMethod::Zstd),
        when_stalled: WhenStalled::Switch,
        read_ahead: ReadAhead::Fixed(16),
        quit_source: true,
        domain: DomainOptions {
            undefine_source: true,
            persistent: true,
            autostart: true,
        },
    }
}

fn all_receive_options() -> ReceiveOptions {
    ReceiveOptions {
        link: link_options(),
        fault_threads: NonZeroU16::new(2),
        collapse_bytes_per_s: NonZeroU64::new(1_000_000_000),
    }
}

/// They can be made by the command line only.
fn link_options() -> LinkOptions {
    let words = "hikkoshi migrate --qmp /q h:1 --stall-timeout 7 --retry-for 90";
    match Args::parse_from(words.split(' ')).command {
        Command::Migrate(migrate) => migrate.options().link,
        other => panic!("{other:?}"),
    }
}

/// The Debian package is not upgraded to a program that lacks the version of a journal in its list.
#[test]
fn the_listed_versions_are_read_and_no_others() {
    assert!(READABLE.contains(&VERSION), "what is written is read");
    for version in 0..=VERSION + 1 {
        let text = format!("{{\"version\":{version}}}");
        let errors = [
            decode::<SourceEntry>(text.as_bytes()).err(),
            decode::<DestinationEntry>(text.as_bytes()).err(),
        ];
        for error in errors {
            let refused =
                matches!(error, Some(RecordError::Version { found, .. }) if found == version);
            assert_eq!(
                refused,
                !READABLE.contains(&version),
                "version {version}: {error:?}"
            );
        }
    }
}

#[test]
fn kept_journals_are_read_and_written_as_kept() {
    for name in ["source-invited", "source-certified", "source-full"] {
        is_written_as_kept(name, &source(name));
    }
    for name in [
        "destination-inviting",
        "destination-certified",
        "destination-full",
    ] {
        is_written_as_kept(name, &destination(name));
    }
    let full = source("source-full");
    assert_eq!(
        (full.plaintext, full.options),
        (true, all_migrate_options())
    );
    let full = destination("destination-full");
    assert_eq!(
        (full.plaintext, full.options),
        (true, all_receive_options())
    );
}

/// Every option and every field that a real file may lack; `BLESS=1` adds new ones to the files.
#[test]
fn every_field_is_in_a_kept_file() {
    let mut entry = source("source-full");
    (entry.plaintext, entry.options) = (true, all_migrate_options());
    entry
        .qemu
        .undo
        .settings
        .discard
        .insert("/objects/ram".into(), true);
    let memory = &mut entry.qemu.identity.memory;
    memory.truncate(1);
    let RamIdentity::File(file) = memory[0].clone() else {
        panic!("{memory:?}");
    };
    let private = |file, sent| RamIdentity::Private {
        address: 139_637_976_727_552,
        file,
        sent,
    };
    memory.extend([private(None, false), private(None, true)]);
    memory.push(private(Some(file), false));
    keep_if_asked("source-full", &entry);
    is_written_as_kept("source-full", &entry);
    let mut entry = destination("destination-full");
    (entry.plaintext, entry.options) = (true, all_receive_options());
    entry
        .qemu
        .settings
        .discard
        .insert("/objects/ram".into(), false);
    keep_if_asked("destination-full", &entry);
    is_written_as_kept("destination-full", &entry);
}

/// A guest of libvirt.
#[test]
fn a_domain_is_in_a_kept_file() {
    let mut entry = source("source-full");
    entry.qemu.identity.monitor = MonitorAddress::Domain {
        uri: "qemu:///system".into(),
        uuid: "6695eb01-f6a4-8304-79aa-97f2502e193f".into(),
        name: "guest".into(),
    };
    keep_if_asked("source-domain", &entry);
    is_written_as_kept("source-domain", &entry);
    let read = source("source-domain");
    assert_eq!(read.qemu.identity, entry.qemu.identity);
    assert_eq!(read.options, entry.options);
}

#[test]
fn a_path_that_is_not_text_is_refused() {
    let mut entry = source("source-full");
    let odd = std::ffi::OsStr::from_bytes(b"/a\xff");
    entry.qemu.identity.monitor = MonitorAddress::Socket(odd.into());
    let error = Report::new(encode(&entry).unwrap_err()).to_string();
    assert!(error.contains("invalid UTF-8"), "{error}");
}

fn keep_if_asked(name: &str, entry: &impl JournalEntry) {
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(path(name), encode(entry).unwrap()).unwrap();
    }
}

/// Names of enum variants, which no kept file has all of.
#[test]
fn tags_are_stable() {
    let mut entry = source("source-full");
    let stage = |entry: &SourceEntry| field(entry, "/engine/stage");
    for (value, tag) in [
        (SourceStage::Owned, "owned"),
        (SourceStage::Committed, "committed"),
        (SourceStage::HandedOver, "handed_over"),
        (SourceStage::Done, "done"),
    ] {
        entry.engine.stage = value;
        assert_eq!(stage(&entry), tag);
        assert_eq!(again(&entry).engine.stage, value);
    }
    for (value, tag) in [
        (Mode::Precopy, "precopy"),
        (Mode::Postcopy, "postcopy"),
        (Mode::Hybrid, "hybrid"),
    ] {
        entry.engine.mode = value;
        assert_eq!(field(&entry, "/engine/mode"), tag);
        assert_eq!(again(&entry).engine.mode, value);
    }
    for (value, tag) in [
        (WhenStalled::Continue, "continue"),
        (WhenStalled::Switch, "switch"),
        (WhenStalled::Stop, "stop"),
    ] {
        entry.options.when_stalled = value;
        assert_eq!(field(&entry, "/options/when_stalled"), tag);
        assert_eq!(again(&entry).options.when_stalled, value);
    }
    for (value, tag) in [(ReadAhead::Off, "off"), (ReadAhead::Adaptive, "adaptive")] {
        entry.options.read_ahead = value;
        assert_eq!(field(&entry, "/options/read_ahead"), tag);
        assert_eq!(again(&entry).options.read_ahead, value);
    }
    let lz4 = Compression::Always(CompressionMethod::Lz4);
    for (value, tag) in [
        (Compression::Off, "off"),
        (Compression::Auto, "auto"),
        (lz4, "lz4"),
    ] {
        entry.options.compression = value;
        assert_eq!(field(&entry, "/options/compression"), tag);
        assert_eq!(again(&entry).options.compression, value);
    }
    let mut entry = destination("destination-full");
    for (value, tag) in [
        (DestinationStage::Receiving, "receiving"),
        (DestinationStage::Ready, "ready"),
        (DestinationStage::Running, "running"),
        (DestinationStage::Complete, "complete"),
        (DestinationStage::Declined, "declined"),
    ] {
        entry.engine.stage = value;
        assert_eq!(field(&entry, "/engine/stage"), tag);
        assert_eq!(again(&entry).engine.stage, value);
    }
}

fn field(entry: &impl JournalEntry, pointer: &str) -> Value {
    let file: Value = serde_json::from_slice(&encode(entry).unwrap()).unwrap();
    file.pointer(pointer).unwrap().clone()
}

fn again<E: JournalEntry>(entry: &E) -> E {
    decode::<E>(&encode(entry).unwrap()).unwrap()
}

/// Damages a journal.
type Change = fn(&mut Value);

#[test]
fn other_files_are_refused_with_the_reason() {
    let decode = |change: Change| {
        let mut file: Value = serde_json::from_slice(&kept("source-full")).unwrap();
        change(&mut file);
        let error = decode::<SourceEntry>(file.to_string().as_bytes()).unwrap_err();
        Report::new(&error).to_string()
    };
    let cases: [(Change, &str); 13] = [
        (
            |file| file["version"] = 2.into(),
            "version 2, and this hikkoshi reads version 1",
        ),
        (
            |file| file["version"] = 0.into(),
            "resume the migration with the hikkoshi that began it",
        ),
        (|file| *file = serde_json::json!({}), "not a journal"),
        (
            |file| file["side"] = "destination".into(),
            "'hikkoshi receive --resume' reads it",
        ),
        (
            |file| file["engine"]["stage"] = "lost".into(),
            "a newer hikkoshi wrote it: unknown variant `lost`",
        ),
        (
            |file| file["engine"]["id"] = "12".into(),
            "32 hexadecimal digits",
        ),
        (
            |file| file["address"] = "nowhere".into(),
            "'nowhere' is not an address",
        ),
        (
            |file| file["qemu"]["identity"]["monitor"] = serde_json::json!({}),
            "damaged, or a newer hikkoshi wrote it: ",
        ),
        (
            |file| file["options"]["links"] = 99.into(),
            "--links: 99 is out of range",
        ),
        (
            |file| file["options"]["link"]["stall_timeout_s"] = 0.into(),
            "--stall-timeout: 0 is out of range",
        ),
        (
            |file| file["options"]["read_ahead"] = "257".into(),
            "--read-ahead: '257' must be",
        ),
        (
            |file| file["options"]["compression"] = "gzip".into(),
            "--compress: 'gzip' must be",
        ),
        (
            |file| file["options"]["more"] = 1.into(),
            "damaged, or a newer hikkoshi wrote it: unknown field `more`",
        ),
    ];
    for (change, reason) in cases {
        let error = decode(change);
        assert!(error.contains(reason), "{error}");
    }
    let cut = &kept("source-full")[..100];
    let error = Report::new(super::decode::<SourceEntry>(cut).unwrap_err()).to_string();
    assert!(error.starts_with("the journal is damaged: EOF"), "{error}");
}
