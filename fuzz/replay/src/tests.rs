#![allow(clippy::unwrap_used, reason = "a test's failure is its message")]

use super::*;
use std::collections::BTreeSet;
use tempfile::TempDir;

/// A folder with one archive, `group_target.tar`, and its checksum.
fn folder(inputs: &[(&str, &[u8])]) -> TempDir {
    let folder = TempDir::new().unwrap();
    let mut archive = tar::Builder::new(Vec::new());
    for (name, bytes) in inputs {
        let mut header = tar::Header::new_ustar();
        header.set_size(bytes.len() as u64);
        archive.append_data(&mut header, name, *bytes).unwrap();
    }
    write(&folder, &archive.into_inner().unwrap());
    folder
}

fn write(folder: &TempDir, archive: &[u8]) {
    let line = format!("{}  group_target.tar\n", checksum(archive));
    fs::write(folder.path().join("SHA256SUMS"), line).unwrap();
    fs::write(archive_path(folder), archive).unwrap();
}

fn archive_path(folder: &TempDir) -> PathBuf {
    folder.path().join("group_target.tar")
}

fn error(folder: &TempDir) -> CorpusError {
    inputs_in(folder.path(), "group_target").unwrap_err()
}

#[test]
fn inputs_are_read_by_name() {
    let folder = folder(&[("first", b"one"), ("second", b"")]);
    let inputs = inputs_in(folder.path(), "group_target").unwrap();
    let expected = [
        ("first".to_owned(), b"one".to_vec()),
        ("second".to_owned(), vec![]),
    ];
    assert_eq!(inputs, Inputs::from(expected));
}

#[test]
fn a_missing_archive_is_an_error() {
    let folder = folder(&[("first", b"one")]);
    fs::remove_file(archive_path(&folder)).unwrap();
    assert!(matches!(error(&folder), CorpusError::Read { .. }));
}

#[test]
fn an_empty_archive_is_an_error() {
    assert!(matches!(error(&folder(&[])), CorpusError::Empty(_)));
    let folder = TempDir::new().unwrap();
    write(&folder, b"");
    assert!(matches!(error(&folder), CorpusError::Empty(_)));
}

#[test]
fn an_archive_that_is_not_listed_is_an_error() {
    let folder = folder(&[("first", b"one")]);
    fs::write(folder.path().join("SHA256SUMS"), "").unwrap();
    assert!(matches!(error(&folder), CorpusError::NotListed(_)));
}

#[test]
fn each_changed_byte_and_each_lost_byte_is_noticed() {
    let folder = folder(&[("first", b"one"), ("second", b"two")]);
    let archive = fs::read(archive_path(&folder)).unwrap();
    for at in 0..archive.len() {
        let mut changed = archive.clone();
        changed[at] ^= 1;
        for damaged in [&changed, &archive[..at]] {
            fs::write(archive_path(&folder), damaged).unwrap();
            assert!(matches!(error(&folder), CorpusError::Checksum(_)), "{at}");
        }
    }
}

#[test]
fn a_name_twice_is_an_error() {
    let folder = folder(&[("same", b"one"), ("same", b"two")]);
    assert!(matches!(error(&folder), CorpusError::Read { .. }));
}

#[test]
fn each_input_is_replayed() {
    fn target(bytes: &[u8]) {
        assert!(bytes == b"one" || bytes == b"two");
    }
    let folder = folder(&[("first", b"one"), ("second", b"two")]);
    replay_in(folder.path(), "group", &[("target", target)]);
}

#[test]
#[should_panic(expected = "the second input")]
fn an_input_that_fails_fails_the_replay() {
    fn target(bytes: &[u8]) {
        assert_ne!(bytes, b"two", "the second input");
    }
    let folder = folder(&[("first", b"one"), ("second", b"two")]);
    replay_in(folder.path(), "group", &[("target", target)]);
}

#[test]
#[should_panic(expected = "but targets []")]
fn a_target_that_is_not_replayed_fails_the_replay() {
    replay_in(folder(&[("first", b"one")]).path(), "group", &[]);
}

/// Without this, the archive of a new fuzz target could be forgotten.
#[test]
fn each_fuzz_target_has_an_archive_and_each_archive_a_target() {
    fn names(folder: &Path, extension: &str) -> BTreeSet<String> {
        let files = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path());
        files
            .filter(|path| path.extension().is_some_and(|found| found == extension))
            .map(|path| path.file_stem().unwrap().to_string_lossy().into_owned())
            .collect()
    }
    let targets = names(&corpora().join("../fuzz_targets"), "rs");
    assert_eq!(names(&corpora(), "tar"), targets);
    assert!(checksums(&corpora()).unwrap().keys().eq(&targets));
    for target in &targets {
        inputs(target).unwrap_or_else(|error| panic!("{error}"));
    }
}
