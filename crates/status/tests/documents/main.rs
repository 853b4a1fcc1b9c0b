//! Documents of other hosts: the kept fuzz inputs.

mod fuzzing;

#[test]
fn kept_inputs_are_read() {
    hikkoshi_fuzz_replay::replay("status", &[("host", fuzzing::host)]);
}
