//! A network namespace.

use super::ip::ip;
use crate::{LabError, spawn};
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Where iproute2 keeps the names of namespaces.
pub(crate) const NAMESPACES: &str = "/run/netns";
/// Prefix of the names, before the process id of the creator.
pub(crate) const NAMESPACE_PREFIX: &str = "hk-";

/// Frames in each queue of a tap device; the default is 1,000.
const TAP_QUEUE: &str = "10000";

/// A network namespace with its loopback device up. Cheap to clone; removed with the last clone.
#[derive(Clone, Debug)]
pub struct Namespace(Arc<Named>);

#[derive(Debug)]
struct Named {
    name: String,
    file: Arc<File>,
}

impl Namespace {
    /// Creates a namespace; `role` becomes part of its name.
    ///
    /// # Errors
    /// When it is not allowed; it needs root.
    pub fn new(role: &str) -> Result<Self, LabError> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{NAMESPACE_PREFIX}{}-{number}-{role}", std::process::id());
        ip(&["netns", "add", &name])?;
        let path = Path::new(NAMESPACES).join(&name);
        let file = match File::open(&path) {
            Ok(file) => Arc::new(file),
            Err(error) => {
                let _ = ip(&["netns", "delete", &name]);
                return Err(LabError::file("opening", path)(error));
            }
        };
        let namespace = Self(Arc::new(Named { name, file }));
        namespace.ip(&["link", "set", "lo", "up"])?;
        Ok(namespace)
    }

    /// The name for `ip netns`.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// A command that runs inside. The process itself enters, so its id stays the same.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        self.enter(&mut command);
        command
    }

    /// Makes a command run inside.
    pub fn enter(&self, command: &mut Command) {
        let file = Arc::clone(&self.0.file);
        // SAFETY: runs between fork and exec, makes one system call on an open file, allocates
        // nothing.
        unsafe {
            command.pre_exec(move || {
                rustix::thread::move_into_link_name_space(
                    file.as_fd(),
                    Some(rustix::thread::LinkNameSpaceType::Network),
                )?;
                Ok(())
            });
        }
    }

    /// Runs `f` on a thread that is inside, for sockets of the test itself.
    ///
    /// # Errors
    /// When the thread cannot enter.
    ///
    /// # Panics
    /// When `f` panics.
    pub fn run<T: Send>(&self, f: impl FnOnce() -> T + Send) -> Result<T, LabError> {
        let enter = || {
            rustix::thread::move_into_link_name_space(
                self.0.file.as_fd(),
                Some(rustix::thread::LinkNameSpaceType::Network),
            )
        };
        std::thread::scope(|scope| {
            let inside = scope.spawn(|| enter().map(|()| f()));
            match inside.join() {
                Ok(result) => result.map_err(|error| {
                    LabError::file("entering the namespace", self.name())(error.into())
                }),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    /// Runs `ip` inside.
    ///
    /// # Errors
    /// When it fails.
    pub fn ip(&self, arguments: &[&str]) -> Result<String, LabError> {
        ip(&[&["-n", self.name()], arguments].concat())
    }

    /// Runs another program inside, and waits for it.
    pub(crate) fn call(&self, program: &str, arguments: &[&str]) -> Result<String, LabError> {
        spawn::run(self.command(program).args(arguments))
    }

    /// Joins this namespace and another one by a veth pair, both ends up.
    pub(crate) fn join(
        &self,
        device: &str,
        other: &Self,
        other_device: &str,
    ) -> Result<(), LabError> {
        self.ip(&[
            "link",
            "add",
            device,
            "type",
            "veth",
            "peer",
            "name",
            other_device,
            "netns",
            other.name(),
        ])?;
        self.ip(&["link", "set", device, "up"])?;
        other.ip(&["link", "set", other_device, "up"])?;
        Ok(())
    }

    /// Adds a bridge, up, with an address.
    pub(crate) fn bridge(&self, device: &str, address: &str) -> Result<(), LabError> {
        self.ip(&["link", "add", device, "type", "bridge"])?;
        self.ip(&["address", "add", address, "dev", device])?;
        self.ip(&["link", "set", device, "up"])?;
        Ok(())
    }

    /// Adds a device to a bridge.
    pub(crate) fn plug(&self, device: &str, bridge: &str) -> Result<(), LabError> {
        self.ip(&["link", "set", device, "master", bridge])
            .map(drop)
    }

    /// Adds a tap device, up, on a bridge. QEMU opens it with one queue, or with several. Each has
    /// room for many frames, because a guest on a busy host may stop reading for seconds.
    pub(crate) fn tap(
        &self,
        device: &str,
        bridge: &str,
        several_queues: bool,
    ) -> Result<(), LabError> {
        let mut add = vec!["tuntap", "add", "dev", device, "mode", "tap"];
        if several_queues {
            add.push("multi_queue");
        }
        self.ip(&add)?;
        self.ip(&["link", "set", "dev", device, "txqueuelen", TAP_QUEUE])?;
        self.plug(device, bridge)?;
        self.ip(&["link", "set", device, "up"]).map(drop)
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        let _ = ip(&["netns", "delete", &self.name]);
    }
}
