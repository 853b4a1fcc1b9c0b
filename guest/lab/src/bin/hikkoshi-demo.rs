//! Moves a test guest between two QEMU processes, with the commands that a user would type.
//! `make demo` builds and runs it.
#![allow(clippy::print_stdout, clippy::print_stderr)] // what it shows is what it is for

use std::env;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command, ExitCode, Stdio};
use std::thread;
use std::time::Duration;

use clap::Parser;
use clap::builder::PossibleValuesParser;
use error_reporter::Report as ErrorReport;
use hikkoshi_lab::{Lab, LabError, QemuVersion, Ram, Report, Vm, VmConfig, Workload};

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
    let mut receive = Running::spawn(
        hikkoshi(destination.qmp_path(), "receive")
            .args(["--listen", "127.0.0.1:0", "--progress", "json"])
            .stdout(Stdio::null())
            .stderr(Stdio::piped()),
    )?;
    let address = listening_at(&mut receive.0)?;
    line(&format!(
        "$ hikkoshi receive --listen {address} --qmp destination.qmp &"
    ));
    line(&format!(
        "$ hikkoshi migrate {address} --qmp source.qmp --mode {} --verbose",
        args.mode
    ));
    let mut migrate = Running::spawn(hikkoshi(source.qmp_path(), "migrate").args([
        &address,
        "--mode",
        &args.mode,
        "--verbose",
    ]))?;
    let migrate = migrate.0.wait().map_err(failed("waiting for"))?;
    if !migrate.success() {
        // `receive` may still wait for a source. It ends with its `Running`.
        return Err(DemoError::Migrate(migrate));
    }
    let receive = receive.0.wait().map_err(failed("waiting for"))?;
    if !receive.success() {
        return Err(DemoError::Receive(receive));
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

/// A child process that ends with the demo.
struct Running(Child);

impl Running {
    fn spawn(command: &mut Command) -> Result<Self, DemoError> {
        command.spawn().map(Self).map_err(failed("starting"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Not SIGKILL: it restores what it has changed.
        if let Some(pid) = rustix::process::Pid::from_raw(self.0.id().cast_signed())
            && matches!(self.0.try_wait(), Ok(None))
        {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            let _ = self.0.wait();
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

/// Reads the address that `receive` listens on from its first notice. A thread continues to read,
/// so that `receive` never blocks on a full pipe.
fn listening_at(receive: &mut Child) -> Result<String, DemoError> {
    const BEFORE_ADDRESS: &str = "waiting for a guest at ";
    let mut output = receive.stderr.take().map(BufReader::new);
    let mut seen = String::new();
    while let Some(reader) = &mut output {
        let mut text = String::new();
        if reader
            .read_line(&mut text)
            .map_err(failed("listening to"))?
            == 0
        {
            break;
        }
        let notice = serde_json::from_str::<serde_json::Value>(&text).unwrap_or_default();
        let address = notice["notice"]
            .as_str()
            .and_then(|notice| notice.strip_prefix(BEFORE_ADDRESS))
            .map(str::to_owned);
        if let Some(address) = address {
            if let Some(mut rest) = output {
                thread::spawn(move || std::io::copy(&mut rest, &mut std::io::sink()));
            }
            return Ok(address);
        }
        seen.push_str(&text);
    }
    Err(DemoError::NotListening(seen))
}

/// Shows what the guest says of itself on `vm`: its last line, and the slowest
/// access in all its lines since line `first` of the console.
fn report(vm: &Vm, first: usize, slowest: &str) {
    let lines = vm.console().since(first);
    let reports = || {
        lines.iter().filter_map(|line| match &line.report {
            Report::Verify(verify) => Some((&line.vm, verify)),
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
