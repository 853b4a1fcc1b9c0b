//! What a libvirt daemon reports of its domains.

use super::LibvirtHost;
use crate::{LabError, spawn};
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Only ends a recorder that hangs.
const LONG: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(10);

/// Defining and undefining it marks a place among the events.
const MARKER: &str = "<domain type='qemu'><name>marker</name><memory>1024</memory>\
     <os><type arch='x86_64'>hvm</type></os></domain>";

/// Records the events of a daemon, by `virsh event`. Ends on drop, or with the daemon.
#[derive(Debug)]
pub struct DomainEvents<'h> {
    host: &'h LibvirtHost,
    process: Child,
    lines: Arc<Mutex<Vec<(Instant, String)>>>,
}

impl<'h> DomainEvents<'h> {
    /// Starts to record.
    ///
    /// # Errors
    /// When the daemon does not answer.
    pub fn record(host: &'h LibvirtHost) -> Result<Self, LabError> {
        // To a pipe, virsh would write blocks.
        let mut command = host.command("stdbuf");
        command
            .args(["-oL", "virsh", "-q", "event", "--all", "--loop"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut process = spawn::spawn(command)?;
        let lines = Arc::new(Mutex::new(Vec::new()));
        let added = Arc::clone(&lines);
        if let Some(stdout) = process.stdout.take() {
            std::thread::spawn(move || {
                for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                    added
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .push((Instant::now(), line));
                }
            });
        }
        let events = Self {
            host,
            process,
            lines,
        };
        // Whether it records already is not said.
        events.mark()?;
        Ok(events)
    }

    /// The events so far of the domain: kind and details, as in `lifecycle: Started Booted`.
    ///
    /// # Errors
    /// When the daemon does not answer.
    pub fn of_domain(&self, domain: &str) -> Result<Vec<String>, LabError> {
        let events = self.with_times(domain)?.into_iter();
        Ok(events.map(|(_, event)| event).collect())
    }

    /// The events so far of the domain, each with the time at which it was received.
    ///
    /// # Errors
    /// When the daemon does not answer.
    pub fn with_times(&self, domain: &str) -> Result<Vec<(Instant, String)>, LabError> {
        self.mark()?;
        let named = format!(" for domain '{domain}'");
        let lines = self.lines();
        let events = lines.iter().filter_map(|(at, line)| {
            let (kind, details) = line.split_once(&named)?;
            let kind = kind.strip_prefix("event ")?.trim_matches('\'');
            Some((*at, format!("{kind}{details}")))
        });
        Ok(events.collect())
    }

    /// Makes the daemon report something, and waits for that.
    fn mark(&self) -> Result<(), LabError> {
        let marks = |lines: &[(Instant, String)]| {
            let marks = lines.iter().filter(|(_, line)| line.contains("'marker'"));
            marks.filter(|(_, line)| line.contains("Undefined")).count()
        };
        let before = marks(&self.lines());
        let deadline = Instant::now() + LONG;
        while Instant::now() < deadline {
            let mark =
                format!("virsh -q define /dev/stdin <<<\"{MARKER}\"; virsh -q undefine marker");
            self.host.shell(&mark)?;
            for _ in 0..10 {
                if marks(&self.lines()) > before {
                    return Ok(());
                }
                std::thread::sleep(POLL);
            }
        }
        Err(LabError::TimedOut {
            what: format!("the events of {}", self.host.name()),
            after: LONG,
            seen: format!("{:#?}", self.lines()),
        })
    }

    fn lines(&self) -> Vec<(Instant, String)> {
        self.lines
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Drop for DomainEvents<'_> {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
