//! The function of the fuzz target `status_host` (`fuzz/fuzz_targets`): a document about a host, as
//! a host sends it that another one asks.

use hikkoshi_status::{HostStatus, MAX_HOST_ENTRIES};

/// Reads any bytes as a document. One that is read is bounded, and can be passed on.
pub(crate) fn host(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let Ok(status) = HostStatus::parse(text) else {
        return;
    };
    assert!(status.guests.len() <= MAX_HOST_ENTRIES);
    assert!(status.guest_count() >= status.guests.len());
    assert!(status.host.memory.free_bytes() <= status.host.memory.available_bytes);
    let Ok(written) = serde_json::to_string(&status) else {
        panic!("a document that was read cannot be written: {status:?}");
    };
    match HostStatus::parse(&written) {
        Ok(again) => assert_eq!(again.guests, status.guests),
        Err(error) => panic!("a document that was written cannot be read: {error}: {written}"),
    }
}
