//! The guest of a domain, on whichever host it runs.

use super::{DomainConfig, DomainConsole, LibvirtHost, LibvirtHosts};
use crate::{Console, GuestReport, LabError, Verdict, spawn, vm};
use std::collections::HashMap;
use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Boot time limit, for a busy host.
const BOOT_TIMEOUT: Duration = Duration::from_secs(300);
const POLL: Duration = Duration::from_millis(2);

type Inputs = Arc<Mutex<HashMap<&'static str, Box<dyn Write + Send>>>>;

/// The guest of a domain. Its output arrives at one console from both hosts; a line's
/// [`vm`](crate::ConsoleLine::vm) is the name of the host.
///
/// The domain ends with its hosts.
pub struct Domain<'h> {
    config: DomainConfig,
    hosts: &'h LibvirtHosts,
    console: Console,
    /// Where commands for the guest are written, by host.
    inputs: Inputs,
    /// The running `virsh console`.
    terminal: Option<Child>,
}

impl<'h> Domain<'h> {
    /// Starts the domain on the source, and waits until its workload runs.
    ///
    /// # Errors
    /// When libvirt refuses it, or the guest does not boot.
    pub fn boot(hosts: &'h LibvirtHosts, config: DomainConfig) -> Result<Self, LabError> {
        Self::boot_on(&hosts.source, hosts, config)
    }

    /// Starts the domain on another host ([`LibvirtHosts::third`]).
    ///
    /// # Errors
    /// The errors of [`boot`](Self::boot).
    pub fn boot_on(
        source: &LibvirtHost,
        hosts: &'h LibvirtHosts,
        config: DomainConfig,
    ) -> Result<Self, LabError> {
        let mut domain = Self::new(source, hosts, config)?;
        let path = domain.write_xml(source)?;
        if domain.config.persistent {
            source.virsh(&["define", &path])?;
            source.virsh(&["start", domain.name()])?;
        } else {
            source.virsh(&["create", &path])?;
        }
        if domain.config.console == DomainConsole::Terminal {
            domain.open_terminal(source)?;
        }
        domain.wait_ready(source)?;
        Ok(domain)
    }

    /// The guest of a domain that another program starts.
    ///
    /// # Errors
    /// When its console cannot be made.
    pub fn expect(hosts: &'h LibvirtHosts, config: DomainConfig) -> Result<Self, LabError> {
        Self::new(&hosts.source, hosts, config)
    }

    fn new(
        source: &LibvirtHost,
        hosts: &'h LibvirtHosts,
        config: DomainConfig,
    ) -> Result<Self, LabError> {
        let domain = Self {
            console: Console::new(),
            inputs: Inputs::default(),
            terminal: None,
            hosts,
            config,
        };
        if domain.config.console == DomainConsole::Socket {
            for host in [source, &hosts.destination] {
                domain.listen(host)?;
            }
        }
        Ok(domain)
    }

    /// Writes the domain's XML to a file of the host, and returns its path there.
    ///
    /// # Errors
    /// When the guest's files are missing, or the file cannot be written.
    pub fn write_xml(&self, host: &LibvirtHost) -> Result<String, LabError> {
        let path = host.folder().join(format!("{}.xml", self.name()));
        fs::write(&path, self.config.xml()?).map_err(LabError::file("writing", &path))?;
        Ok(format!("{}/{}.xml", LibvirtHost::FOLDER, self.name()))
    }

    /// Waits until the workload has started on that host.
    ///
    /// # Errors
    /// When the guest does not boot.
    pub fn wait_ready(&self, host: &LibvirtHost) -> Result<(), LabError> {
        self.wait_report(host, "the workload to start", 0, BOOT_TIMEOUT, |report| {
            matches!(report, GuestReport::Ready(_)).then_some(())
        })
    }

    /// Accepts each QEMU that connects to the console's socket on this host.
    fn listen(&self, host: &LibvirtHost) -> Result<(), LabError> {
        let path = host.folder().join(self.config.socket());
        let listener = vm::listen(&path)?;
        let everyone = Permissions::from_mode(0o666);
        fs::set_permissions(&path, everyone).map_err(LabError::file("changing", &path))?;
        let (console, name) = (self.console.clone(), host.name());
        let inputs = Arc::downgrade(&self.inputs);
        std::thread::spawn(move || {
            // Until the domain is dropped.
            while let Some(inputs) = inputs.upgrade() {
                if let Some((output, input)) = accept(&listener) {
                    let _ = console.follow(name, output);
                    let mut inputs = inputs.lock().unwrap_or_else(PoisonError::into_inner);
                    inputs.insert(name, Box::new(input));
                }
                drop(inputs);
                std::thread::sleep(POLL);
            }
        });
        Ok(())
    }

    /// Connects to the guest's console on this host by `virsh console`, and ends an earlier one.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn open_terminal(&mut self, host: &LibvirtHost) -> Result<(), LabError> {
        self.close_terminal();
        // It needs a terminal.
        let virsh = format!("virsh console {}", self.name());
        let mut command = host.command("script");
        command
            .args(["--quiet", "--flush", "--return", "--command", &virsh])
            .arg("/dev/null")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let first = self.console.len();
        let mut process = spawn::spawn(command)?;
        if let (Some(stdout), Some(stdin)) = (process.stdout.take(), process.stdin.take()) {
            self.console.follow(host.name(), stdout)?;
            self.set_input(host, stdin);
        }
        self.terminal = Some(process);
        self.console
            .wait_for("virsh console", first, BOOT_TIMEOUT, |line| {
                line.text.contains("Escape character").then_some(())
            })
    }

    fn set_input(&self, host: &LibvirtHost, input: ChildStdin) {
        let mut inputs = self.inputs.lock().unwrap_or_else(PoisonError::into_inner);
        inputs.insert(host.name(), Box::new(input));
    }

    fn close_terminal(&mut self) {
        if let Some(mut process) = self.terminal.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// The domain's name.
    pub fn name(&self) -> &str {
        &self.config.name
    }

    /// Its configuration.
    pub fn config(&self) -> &DomainConfig {
        &self.config
    }

    /// The hosts.
    pub fn hosts(&self) -> &'h LibvirtHosts {
        self.hosts
    }

    /// The guest's console.
    pub fn console(&self) -> &Console {
        &self.console
    }

    /// Waits for a report of the guest on this host, from console line `first` on.
    ///
    /// # Errors
    /// When there was none within `timeout`; with the end of the daemon's log.
    pub fn wait_report<T>(
        &self,
        host: &LibvirtHost,
        what: &str,
        first: usize,
        timeout: Duration,
        mut wanted: impl FnMut(&GuestReport) -> Option<T>,
    ) -> Result<T, LabError> {
        let waited = self.console.wait_for(what, first, timeout, |line| {
            (*line.vm == *host.name())
                .then(|| wanted(&line.report))
                .flatten()
        });
        waited.map_err(|error| match error {
            LabError::TimedOut { what, after, seen } => LabError::TimedOut {
                what: format!("{what} on {}", host.name()),
                after,
                seen: format!("{seen}\n{}", host.daemon_log()),
            },
            other => other,
        })
    }

    /// Sends the workload a command.
    ///
    /// # Errors
    /// When no console of the guest is connected on this host.
    pub fn send(&self, host: &LibvirtHost, line: &str) -> Result<(), LabError> {
        let mut inputs = self.inputs.lock().unwrap_or_else(PoisonError::into_inner);
        let written = match inputs.get_mut(host.name()) {
            Some(input) => input
                .write_all(format!("{line}\n").as_bytes())
                .and_then(|()| input.flush()),
            None => Err(std::io::ErrorKind::NotConnected.into()),
        };
        written.map_err(LabError::file("writing to the console on", host.name()))
    }

    /// Waits until the workload has made progress on this host, makes it check every page, and
    /// returns its verdict.
    ///
    /// # Errors
    /// When there is none within `timeout`.
    pub fn sweep(&self, host: &LibvirtHost, timeout: Duration) -> Result<Verdict, LabError> {
        let first = self.console.len();
        // The interval of the first report may have begun on the other host.
        let mut reports = 0;
        self.wait_report(host, "work", first, timeout, |report| {
            let work = match report {
                GuestReport::Verify(verify) => verify.latency.accesses > 0,
                GuestReport::Dirty(dirty) => dirty.latency.accesses > 0,
                GuestReport::Idle(_) => true,
                _ => false,
            };
            reports += u32::from(work);
            (reports == 2).then_some(())
        })?;
        self.send(host, "sweep")?;
        self.wait_report(host, "a verdict", first, timeout, |report| match report {
            GuestReport::Verdict(verdict) => Some(*verdict),
            _ => None,
        })
    }

    /// Ends the domain, so that its disks can be checked. QEMU completes pending writes.
    ///
    /// # Errors
    /// When libvirt refuses.
    pub fn destroy(&self, host: &LibvirtHost) -> Result<(), LabError> {
        host.virsh(&["destroy", "--graceful", self.name()])
            .map(drop)
    }
}

impl Drop for Domain<'_> {
    fn drop(&mut self) {
        self.close_terminal();
        if std::thread::panicking() {
            let _ = writeln!(std::io::stderr(), "console:\n{}", self.console.tail());
        }
    }
}

impl std::fmt::Debug for Domain<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Domain")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

/// A connection for reading, and the same for writing.
fn accept(
    listener: &UnixListener,
) -> Option<(
    std::os::unix::net::UnixStream,
    std::os::unix::net::UnixStream,
)> {
    let (stream, _) = listener.accept().ok()?;
    stream.set_nonblocking(false).ok()?;
    let input = stream.try_clone().ok()?;
    Some((stream, input))
}
