//! Moves a test guest between two QEMU processes, with the commands that a user would type.
//! `make demo` builds and runs it.
#![allow(clippy::print_stdout, clippy::print_stderr)] // what it shows is what it is for

use std::env;
use std::path::{Path, PathBuf};
use std::process::{self, Command, ExitCode, Stdio};
use std::thread;
use std::time::Duration;

use clap::Parser;
use clap::builder::PossibleValuesParser;
use error_reporter::Report as ErrorReport;
use hikkoshi_lab::{
    GuestReport, Lab, LabError, QemuVersion, Ram, RunningProgram, StandardError, Vm, VmConfig,
    Workload,
};
use rustix::process::Signal;

/// Boots a test guest, moves it to a second QEMU with hikkoshi, and checks its memory
#[derive(Debug, Parser)]
#[command(name = "make demo")]
struct Demo {
    /// Migration mode
    #[arg(
        long,
        default_value = "hybrid",
        value_parser = PossibleValuesParser::new(["precopy", "postcopy", "hybrid"])
    )]
    mode: String,

    /// The guest's memory in MiB; its workload writes to half of it all the time
    #[arg(
        long,
        value_name = "MIB",
        default_value_t = 512,
        value_parser = clap::value_parser!(u64).range(256..=16_384)
    )]
    memory: u64,

    /// Where to write the report
    #[arg(long, value_name = "FILE", default_value = "hikkoshi-demo.html")]
    report: PathBuf,

    /// QEMU version on both sides, of those that `make setup` installs
    #[arg(
        long,
        value_name = "VERSION",
        default_value = "10.0",
        value_parser = PossibleValuesParser::new(QemuVersion::ALL.map(QemuVersion::label))
    )]
    qemu: String,
}

/// How long the guest runs its workload before and after the move.
const BEFORE: Duration = Duration::from_secs(3);
const AFTER: Duration = Duration::from_secs(2);

/// How long `receive` may take to listen, and to end.
const END: Duration = Duration::from_secs(60);

/// How long the guest may take to check all of its memory.
const SWEEP: Duration = Duration::from_secs(60);

/// Why the demo failed.
#[derive(Debug, thiserror::Error)]
enum DemoError {
    /// The guests.
    #[error(transparent)]
    Lab(#[from] LabError),
    /// hikkoshi as a child.
    #[error("{doing} hikkoshi")]
    Program {
        doing: &'static str,
        #[source]
        cause: std::io::Error,
    },
    /// `migrate` failed; it has said why.
    #[error("'hikkoshi migrate' failed: {0}")]
    Migrate(process::ExitStatus),
    /// `receive` failed although `migrate` did not.
    #[error("'hikkoshi receive' failed: {0}")]
    Receive(process::ExitStatus),
    /// `receive` did not end after `migrate` has.
    #[error("'hikkoshi receive' does not end")]
    StillReceiving,
    /// The guest has found pages that are not what it wrote.
    #[error("the guest found {0} bad pages at the destination")]
    BadPages(u64),
    /// `report` failed; it has said why.
    #[error("'hikkoshi report' failed: {0}")]
    Report(process::ExitStatus),
    /// `receive` did not come up.
    #[error("'hikkoshi receive' ended before it listened: {0}")]
    NotListening(String),
}

fn main() -> ExitCode {
    let args = Demo::parse();
    match show(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("the demo failed: {}", ErrorReport::new(&error));
            ExitCode::FAILURE
        }
    }
}

fn show(args: &Demo) -> Result<(), DemoError> {
    let lab = Lab::new()?;
    let mut versions = QemuVersion::ALL.into_iter();
    let version = versions.find(|version| version.label() == args.qemu);
    let version = version.unwrap_or(QemuVersion::V10_0);
    let half = args.memory / 2;
    let config = VmConfig::new()
        .version(version)
        .ram(Ram::shared(args.memory))
        .workload(Workload::verify(half));

    headline("A guest boots");
    let source = config.start(&lab, "source")?;
    let destination = config
        .clone()
        .console(source.console().clone())
        .incoming()
        .start(&lab, "destination")?;
    let ready = source.wait_ready()?;
    line(&format!(
        "QEMU {version}, {} MiB; up after {:.1} s. It rewrites {half} MiB at random, as fast as it \
         can, and checks every page that it touches.",
        args.memory, ready.uptime
    ));
    thread::sleep(BEFORE);
    report(&source, 0, "its slowest access took");

    headline("Migration");
    let moved_at = source.console().len();
    move_guest(args, &source, &destination)?;

    headline("The guest continues at the destination");
    thread::sleep(AFTER);
    report(
        &destination,
        moved_at,
        "its slowest access since the move began took",
    );
    line("The guest checks every page of its memory ...");
    let check = destination.sweep(SWEEP)?;
    line(&format!(
        "The guest's check: {} pages checked, {} bad",
        check.pages, check.bad
    ));
    line(&format!(
        "\nWhat happened, with pictures, for a browser: {}",
        args.report.display()
    ));
    match check.ok {
        true => Ok(()),
        false => Err(DemoError::BadPages(check.bad)),
    }
}

/// Runs `hikkoshi receive` and `hikkoshi migrate`, and `hikkoshi report` afterwards.
fn move_guest(args: &Demo, source: &Vm, destination: &Vm) -> Result<(), DemoError> {
    let mut receive = hikkoshi(destination.qmp_path(), "receive");
    receive.args(["--listen", "127.0.0.1:0", "--progress", "json"]);
    let mut receive = Receiver(RunningProgram::start(receive, StandardError::Read)?);
    let address = receive.address()?;
    line(&format!(
        "$ hikkoshi receive --listen {address} --qmp destination.qmp &"
    ));
    line(&format!(
        "$ hikkoshi migrate {address} --qmp source.qmp --mode {} --verbose",
        args.mode
    ));
    let migrate = hikkoshi(source.qmp_path(), "migrate")
        .args([&address, "--mode", &args.mode, "--verbose"])
        .status()
        .map_err(failed("starting"))?;
    if !migrate.success() {
        return Err(DemoError::Migrate(migrate));
    }
    let received = receive.0.wait(END).map_err(failed("waiting for"))?;
    match received {
        Some(received) if received.success() => {}
        Some(received) => return Err(DemoError::Receive(received)),
        None => return Err(DemoError::StillReceiving),
    }
    // Afterwards, so that it has both sides.
    let reported = hikkoshi_without_qmp(source.qmp_path(), "report")
        .arg("--output")
        .arg(&args.report)
        .stdout(Stdio::null())
        .status()
        .map_err(failed("starting"))?;
    match reported.success() {
        true => Ok(()),
        false => Err(DemoError::Report(reported)),
    }
}

/// `hikkoshi receive`. It ends with the demo.
struct Receiver(RunningProgram);

impl Receiver {
    /// The address that it listens on, from its first notice.
    fn address(&self) -> Result<String, DemoError> {
        const BEFORE_ADDRESS: &str = "waiting for a guest at ";
        let address = |line: &str| {
            let notice = serde_json::from_str::<serde_json::Value>(line).ok()?;
            let notice = notice.get("notice")?.as_str()?;
            notice.strip_prefix(BEFORE_ADDRESS).map(str::to_owned)
        };
        let stderr = self.0.stderr();
        let found = stderr.wait_line(END, address);
        found.ok_or_else(|| DemoError::NotListening(stderr.text()))
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        // Not SIGKILL: it restores what it has changed.
        if self.0.signal(Signal::TERM).is_ok() {
            let _ = self.0.wait(END);
        }
    }
}

/// hikkoshi, with a subcommand.
fn hikkoshi(qmp: &Path, subcommand: &str) -> Command {
    let mut command = hikkoshi_without_qmp(qmp, subcommand);
    command.arg("--qmp").arg(qmp);
    command
}

/// hikkoshi, with a subcommand that is not about a machine. The journals are those of the machine
/// at `qmp`.
fn hikkoshi_without_qmp(qmp: &Path, subcommand: &str) -> Command {
    // Cargo builds both programs into one folder.
    let own = env::current_exe().unwrap_or_default();
    let mut command = Command::new(own.with_file_name("hikkoshi"));
    command
        .arg(subcommand)
        // Beside the machine's socket: removed together with it.
        .arg("--journal")
        .arg(qmp.with_file_name("journal"))
        .stdin(Stdio::null());
    command
}

fn failed(doing: &'static str) -> impl FnOnce(std::io::Error) -> DemoError {
    move |cause| DemoError::Program { doing, cause }
}

/// Shows what the guest says of itself on `vm`: its last line, and the slowest
/// access in all its lines since line `first` of the console.
fn report(vm: &Vm, first: usize, slowest: &str) {
    let lines = vm.console().since(first);
    let reports = || {
        lines.iter().filter_map(|line| match &line.report {
            GuestReport::Verify(verify) => Some((&line.vm, verify)),
            _ => None,
        })
    };
    let worst = reports().map(|(_, verify)| verify.latency.max_us);
    let worst = worst.fold(0.0, f64::max) / 1e3;
    if let Some((_, last)) = reports().rfind(|(at, _)| ***at == *vm.name()) {
        line(&format!(
            "The guest at the {}: {} pages rewritten and checked in the last second, {} bad; \
             {slowest} {worst:.2} ms.",
            vm.name(),
            last.latency.accesses,
            last.bad,
        ));
    }
}

fn headline(text: &str) {
    line(&format!("\n== {text}"));
}

fn line(text: &str) {
    println!("{text}");
}
