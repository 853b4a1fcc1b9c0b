//! Arbitrary messages for both state machines: random ones, and the kept fuzz inputs.

use proptest::prelude::*;

use super::fuzzing;

const TARGETS: [hikkoshi_fuzz_replay::Target; 3] = [
    ("source", fuzzing::source),
    ("destination", fuzzing::destination),
    ("replayed", fuzzing::replayed),
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn any_messages_keep_the_rules(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        for (_, target) in TARGETS {
            target(&bytes);
        }
    }
}

#[test]
fn the_kept_fuzz_inputs_pass() {
    hikkoshi_fuzz_replay::replay("handover", &TARGETS);
}
