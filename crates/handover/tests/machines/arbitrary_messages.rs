//! Arbitrary messages at both machines, at random and from the fuzz targets'
//! corpora.

use proptest::prelude::*;

use super::fuzzing;

/// What a fuzz target is called, and what it does.
type Target = (&'static str, fn(&[u8]));

const TARGETS: [Target; 3] = [
    ("custody_source", fuzzing::source),
    ("custody_destination", fuzzing::destination),
    ("custody_replayed", fuzzing::replayed),
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn whatever_is_said(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        for (_, target) in TARGETS {
            target(&bytes);
        }
    }
}

#[test]
fn what_the_fuzzer_found_worth_keeping() {
    for (name, target) in TARGETS {
        let folder = format!("{}/fuzz/corpus/{name}", env!("CARGO_MANIFEST_DIR"));
        let mut files = 0;
        for file in std::fs::read_dir(&folder).unwrap() {
            target(&std::fs::read(file.unwrap().path()).unwrap());
            files += 1;
        }
        assert!(files >= 10, "only {files} files in {folder}");
    }
}
