//! Guests whose memory travels compressed. The guest checks every page of it.

use hikkoshi_account::Compression;
use hikkoshi_lab::{VmConfig, Workload};
use hikkoshi_tests::{Guest, MigrationPlan, TestEnv, Transport};

#[test]
fn a_guest_is_moved_by_each_method() {
    let env = TestEnv::new();
    let workload = Workload::verify(48).rate(5000).option("repeat", 1);
    let mut guest = Guest::boot(&env, VmConfig::new().workload(workload));
    for (mode, compress) in [
        ("hybrid", "zstd"),
        ("hybrid", "lz4"),
        ("precopy", "zstd"),
        ("hybrid", "off"),
    ] {
        let plan = MigrationPlan::new(mode)
            .transport(Transport::Tcp)
            .migrate_args(&["--compress", compress]);
        let report = guest.migrate(&plan);
        let compression = report.compression.unwrap_or_default();
        let Compression { lz4, zstd } = compression;
        let used = (lz4.is_some(), zstd.is_some());
        assert_eq!(used, (compress == "lz4", compress == "zstd"), "{mode}");
        if compress != "off" {
            let all = compression.all();
            // The guest's pages become a third, and most of its other memory a half or less.
            assert!(all.content_bytes > 24 << 20, "{mode}: {all:?}");
            assert!(all.sent_bytes * 2 < all.content_bytes, "{mode}: {all:?}");
        }
    }
}
