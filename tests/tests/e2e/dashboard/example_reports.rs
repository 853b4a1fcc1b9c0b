//! Makes the recordings whose reports docs/reading-a-report.md reads, and a picture of each report.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use std::path::{Path, PathBuf};

use hikkoshi_dashboard::recordings_in;
use hikkoshi_lab::browser::Viewport;
use hikkoshi_lab::{HostPair, Pattern, Ram, RateLimit, VmConfig, Workload};
use hikkoshi_status::Recording;
use hikkoshi_tests::{Guest, MigrationPlan, ShownPage, TestEnv, Transport, log};

use super::reports::report;
use super::run_folder;

/// The folder of the recordings and pictures: `make docs-reports` names that of the documents.
/// Otherwise they are removed with the test's folder.
fn folder(env: &TestEnv) -> PathBuf {
    std::env::var_os("HIKKOSHI_REPORTS").map_or(env.folder().to_owned(), PathBuf::from)
}

/// The window that is drawn: what a picture of less than 200 KB shows.
const WINDOW: Viewport = Viewport {
    width: 1280,
    height: 1300,
    scale: 1,
    mobile: false,
};

/// The recordings in a report. Guests are named by their sockets, which were in the test's folder.
fn recordings(report: &Path, folder: &Path) -> Vec<Recording> {
    let page = std::fs::read_to_string(report).unwrap();
    let page = page.replace(folder.to_str().unwrap(), "/run/qemu");
    serde_json::from_str(recordings_in(&page).unwrap()).unwrap()
}

/// A command that gives a program's host a name, which the reports show.
fn on_host(name: &str) -> [String; 5] {
    let script = format!("hostname {name} && exec \"$0\" \"$@\"");
    ["unshare", "--uts", "sh", "-c", &script].map(str::to_owned)
}

/// A plan over the line.
fn plan(env: &TestEnv, line: &HostPair, mode: &'static str) -> MigrationPlan {
    let run_folder = run_folder(env);
    let [source, destination] = ["desk", "rack"].map(on_host);
    MigrationPlan::new(mode)
        .migrate_launcher(&source.each_ref().map(String::as_str))
        .receive_launcher(&destination.each_ref().map(String::as_str))
        .transport(Transport::Address(format!(
            "{}:7000",
            HostPair::DESTINATION
        )))
        .between_namespaces(line.source(), line.destination())
        .journals_at(&run_folder, &run_folder)
        .migrate_args(&["--max-downtime", "300"])
}

/// A guest of 512 MiB that writes 10,000 words a second at random to half of its memory, over a
/// line of 1 Gbit/s: by pre-copy limited to 200 Mbit/s, which does not converge and ends, and by
/// hybrid with two rounds.
#[test]
#[ignore = "makes files of the documents: make docs-reports"]
fn the_reports_of_the_documents() {
    let env = TestEnv::new();
    let line = HostPair::new(Some(RateLimit::gbit(1))).unwrap();
    let workload = Workload::dirty(256).pattern(Pattern::Random).rate(10_000);
    let config = VmConfig::new().ram(Ram::shared(512)).workload(workload);
    let mut guest = Guest::boot(&env, config.namespace(line.source()));
    let load = || std::fs::read_to_string("/proc/loadavg").unwrap();
    log(format!("load before: {}", load()));

    let [stays, moves] = ["no-convergence.html", "normal.html"].map(|name| env.folder().join(name));
    let slow = [
        "--bandwidth",
        "200Mbit",
        "--max-rounds",
        "4",
        "--when-stalled",
        "stop",
    ];
    let slow = plan(&env, &line, "precopy").migrate_args(&slow);
    let (exits, finished) = guest.start_migration(&slow).wait();
    exits.assert_source(1, &["the guest still runs at the source"]);
    guest.assert_stayed(finished, "does not converge");
    // With both sides, which have ended.
    report(&run_folder(&env), &stays, &[]).assert(0, &[]);

    let hybrid = plan(&env, &line, "hybrid").migrate_args(&["--rounds", "2"]);
    let (exits, finished) = guest.start_migration(&hybrid).wait();
    let result = guest.complete_migration(&exits, finished, "running");
    report(&run_folder(&env), &moves, &[]).assert(0, &[]);
    log(format!("load after: {}; {result}", load()));

    let shown = ShownPage::start();
    shown.browser.set_viewport(WINDOW).unwrap();
    for file in [&stays, &moves] {
        let recordings = recordings(file, env.folder());
        std::fs::write(file, hikkoshi_dashboard::report(&recordings)).unwrap();
        let name = file.file_stem().unwrap().to_str().unwrap();
        for recording in &recordings {
            let side = recording.migration.side.name();
            let json = serde_json::to_string(recording).unwrap();
            std::fs::write(
                folder(&env).join(format!("{name}-{side}.json")),
                json + "\n",
            )
            .unwrap();
        }
        shown.open(&format!("file://{}", file.display()));
        shown.wait("the views", "document.querySelector('article h2')");
        shown
            .browser
            .screenshot(&folder(&env).join(name).with_extension("png"))
            .unwrap();
        shown.assert_clean();
    }
}
