//! The pages that show migrations, in a browser.
use hikkoshi_status::Side;
use hikkoshi_tests::recordings::{Ending, RecordedCase};

#[test]
fn write_reports() {
    let cases = [
        RecordedCase::new("web", "hybrid"),
        RecordedCase {
            outage: true,
            ..RecordedCase::new("database", "postcopy")
        },
        RecordedCase::new("mail", "precopy"),
        RecordedCase {
            ending: Ending::Cancelled(20),
            ..RecordedCase::new("build", "precopy")
        },
        RecordedCase {
            ending: Ending::Lost,
            ..RecordedCase::new("cache", "hybrid")
        },
    ];
    std::fs::create_dir_all("/tmp/page").unwrap();
    let mut all = Vec::new();
    for case in cases {
        let recorded = case.record();
        let both = [
            recorded.recording(Side::Source),
            recorded.recording(Side::Destination),
        ];
        std::fs::write(
            format!("/tmp/page/{}.html", case.guest),
            hikkoshi_dashboard::report(&both),
        )
        .unwrap();
        all.extend(both);
    }
    std::fs::write("/tmp/page/all.html", hikkoshi_dashboard::report(&all)).unwrap();
}
