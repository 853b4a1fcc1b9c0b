//! The adapters of both sides, which fail where a test wants them to.
//!
//! Memory, faults and dirty log are real. The hypervisor's calls (pause, save, load, resume) are
//! scripted.

use std::collections::HashMap;
use std::fmt;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hikkoshi_dirty::{DirtyError, DirtyLog, PagemapLog};
use hikkoshi_engine::report::FaultKind;
use hikkoshi_engine::{
    CancelFlag, DestinationGuest, DestinationOptions, DestinationProcess, FrameCapture,
    FrameDelivery, GuestError, Hardware, SourceGuest, SourceProcess, ThreadName,
};
use hikkoshi_linux::{HostAddr, Process};
use hikkoshi_memory::GuestRam;
use hikkoshi_pages::PageRange;
use hikkoshi_userfault::{Features, Userfault};
use hikkoshi_wire::{GuestDescription, Processors};

use crate::direct_io_device::DirectDevice;
use crate::machine::{Machine, Random, Side};
use crate::network::{Burst, Received};

type Hook = Box<dyn FnMut() -> Result<(), GuestError> + Send>;

/// What happens at each call, and the calls so far.
#[derive(Default)]
pub(crate) struct Script {
    hooks: Mutex<HashMap<&'static str, Hook>>,
    calls: Mutex<Vec<&'static str>>,
}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.calls()).finish()
    }
}

impl Script {
    /// Runs `hook` at the start of the call `name`.
    pub(crate) fn at(
        &self,
        name: &'static str,
        hook: impl FnMut() -> Result<(), GuestError> + Send + 'static,
    ) {
        self.hooks.lock().unwrap().insert(name, Box::new(hook));
    }

    /// Makes the call `name` fail.
    pub(crate) fn fail(&self, name: &'static str) {
        self.at(name, move || {
            Err(GuestError::new(format!("{name} does not work")))
        });
    }

    /// The calls so far, in order.
    pub(crate) fn calls(&self) -> Vec<&'static str> {
        self.calls.lock().unwrap().clone()
    }

    /// How often `name` was called.
    pub(crate) fn count(&self, name: &str) -> usize {
        self.calls().iter().filter(|call| **call == name).count()
    }

    pub(crate) fn call(&self, name: &'static str) -> Result<(), GuestError> {
        self.calls.lock().unwrap().push(name);
        // Without the lock: a hook may make calls itself, or wait for long.
        let hook = self.hooks.lock().unwrap().remove(name);
        let Some(mut hook) = hook else { return Ok(()) };
        let result = hook();
        self.hooks.lock().unwrap().entry(name).or_insert(hook);
        result
    }
}

/// The device state of the tests: bytes that depend on their position.
pub(crate) fn device_state(bytes: usize) -> Vec<u8> {
    let mut random = Random::new(bytes as u64 + 1);
    (0..bytes).map(|_| random.below(256) as u8).collect()
}

fn description(memory: &crate::memory::Memory, running: bool) -> GuestDescription {
    GuestDescription {
        machine: "test-1.0".into(),
        architecture: "x86_64".into(),
        cpus: 2,
        cpu_model: "thread".into(),
        hypervisor: "tests 1.0".into(),
        running,
        blocks: GuestDescription::describe_blocks(memory.layout()),
    }
}

#[derive(Debug)]
pub(crate) struct TestSource {
    pub description: GuestDescription,
    pub processors: Processors,
    pub script: Arc<Script>,
    machine: Arc<Machine>,
    ram: Arc<GuestRam>,
    pub device_bytes: usize,
    pub ended: Arc<AtomicBool>,
    /// A device that writes to its memory without the dirty log seeing it.
    pub device: Option<DirectDevice>,
    /// Saving the device state stops half-way, and waits until it is cancelled.
    pub save_stalls: bool,
    /// Frames that arrive for it.
    pub frames: Option<Burst>,
    log: Option<Arc<dyn DirtyLog>>,
}

impl TestSource {
    pub(crate) fn new(machine: &Arc<Machine>, running: bool, device_bytes: usize) -> Self {
        let memory = machine.memory(Side::Source);
        Self {
            description: description(memory, running),
            processors: Processors::default(),
            script: Arc::default(),
            machine: Arc::clone(machine),
            ram: memory.ram(),
            device_bytes,
            ended: Arc::default(),
            device: None,
            save_stalls: false,
            frames: None,
            log: None,
        }
    }
}

impl SourceGuest for TestSource {
    fn describe(&self) -> &GuestDescription {
        &self.description
    }

    fn hardware(&self) -> Hardware {
        Hardware {
            processors: self.processors.clone(),
            ..Hardware::default()
        }
    }

    fn process(&mut self) -> Option<&mut dyn SourceProcess> {
        Some(self)
    }

    fn ram(&self) -> Arc<GuestRam> {
        Arc::clone(&self.ram)
    }

    fn start_dirty_log(&mut self) -> Result<Arc<dyn DirtyLog>, GuestError> {
        self.script.call("start_dirty_log")?;
        let userfault = Userfault::create_for_self(Features::FOR_DIRTY_LOG).unwrap();
        let memory = self.machine.memory(Side::Source);
        let hosts: Vec<_> = memory.hosts().into_iter().map(HostAddr).collect();
        let log = PagemapLog::start(Arc::new(userfault), memory.layout(), &hosts).unwrap();
        let log: Arc<dyn DirtyLog> = Arc::new(ScriptedLog {
            log,
            script: Arc::clone(&self.script),
        });
        self.log = Some(Arc::clone(&log));
        Ok(log)
    }

    fn needs_drain(&self) -> bool {
        self.device.is_some()
    }

    fn drain(&mut self, cancel: &CancelFlag) -> Result<(), GuestError> {
        self.script.call("drain")?;
        if cancel.is_cancelled() {
            return Err(GuestError::new("the drain was cancelled"));
        }
        if let Some(device) = &mut self.device {
            device.land();
            device.submit();
        }
        Ok(())
    }

    fn prepare_pause(&mut self) -> Result<(), GuestError> {
        self.script.call("prepare_pause")
    }

    fn pause(&mut self) -> Result<Instant, GuestError> {
        self.script.call("pause")?;
        self.machine.stop(Side::Source, Duration::from_secs(20));
        if let Some(device) = &mut self.device {
            device.land();
        }
        Ok(Instant::now())
    }

    fn save_device_state(
        &mut self,
        sink: &mut dyn Write,
        give_up: &CancelFlag,
    ) -> Result<(), GuestError> {
        self.script.call("save_device_state")?;
        let state = device_state(self.device_bytes);
        let (first, rest) = state.split_at(state.len() / 3);
        sink.write_all(first).map_err(GuestError::new)?;
        self.script.call("save_device_state half-way")?;
        if self.save_stalls {
            while !give_up.is_cancelled() {
                std::thread::sleep(Duration::from_millis(1));
            }
            return Err(GuestError::new("save_device_state was cancelled"));
        }
        sink.write_all(rest).map_err(GuestError::new)
    }

    fn capture_frames(&mut self) -> Result<Option<Box<dyn FrameCapture>>, GuestError> {
        let frames = self.frames.take();
        Ok(frames.map(|frames| Box::new(frames) as Box<dyn FrameCapture>))
    }

    fn resume(&mut self) -> Result<(), GuestError> {
        self.script.call("resume")?;
        if self.description.running {
            self.machine.run(Side::Source);
        }
        Ok(())
    }

    fn release(&mut self) -> Result<(), GuestError> {
        self.script.call("release")?;
        if let Some(log) = self.log.take() {
            log.stop().unwrap();
        }
        Ok(())
    }

    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }
}

impl SourceProcess for TestSource {
    fn check_paused(&mut self) -> Result<(), GuestError> {
        self.script.call("check_paused")
    }

    fn leave(&mut self) {
        let _ = self.script.call("leave");
    }
}

/// A real dirty log whose calls can be made to fail.
#[derive(Debug)]
struct ScriptedLog {
    log: PagemapLog,
    script: Arc<Script>,
}

impl ScriptedLog {
    fn call(&self, name: &'static str) -> Result<(), DirtyError> {
        self.script
            .call(name)
            .map_err(|_| DirtyError::ProcessGone { pid: 4711 })
    }
}

impl DirtyLog for ScriptedLog {
    fn take(&self, range: PageRange, dirty: &mut dyn FnMut(PageRange)) -> Result<(), DirtyError> {
        self.call("take")?;
        self.log.take(range, dirty)
    }

    fn peek(&self, range: PageRange, dirty: &mut dyn FnMut(PageRange)) -> Result<(), DirtyError> {
        self.call("peek")?;
        self.log.peek(range, dirty)
    }

    fn count(&self, range: PageRange) -> Result<u64, DirtyError> {
        self.call("count")?;
        self.log.count(range)
    }

    fn starts_clean(&self) -> bool {
        self.log.starts_clean()
    }

    fn stop(&self) -> Result<(), DirtyError> {
        self.log.stop()
    }
}

#[derive(Debug)]
pub(crate) struct TestDestination {
    pub description: GuestDescription,
    pub processors: Processors,
    pub script: Arc<Script>,
    machine: Arc<Machine>,
    ram: Arc<GuestRam>,
    device_bytes: usize,
    /// The userfaultfd inside the process.
    pub userfault: Option<Arc<Userfault>>,
    /// Whether the call that resumes the guest reads a page first.
    pub looks: bool,
    /// Whether the monitor can report that the guest never ran.
    pub never_ran: bool,
    /// Whether the process has exited.
    pub ended: Arc<AtomicBool>,
    /// Whether it exits because the guest has shut itself down.
    pub shuts_down: bool,
    /// Whether its machine, which has not exited, says that the guest has shut itself down.
    pub is_shut_down: Option<bool>,
    /// Whether loading checks the pages that it reads.
    pub checks: bool,
    pub abandoned: bool,
    /// Where frames for the guest are delivered.
    pub frames: Option<Received>,
    /// What is not done when every page is here.
    pub left_to_do: Option<String>,
}

impl TestDestination {
    pub(crate) fn new(machine: &Arc<Machine>, device_bytes: usize) -> Self {
        let memory = machine.memory(Side::Destination);
        Self {
            description: description(memory, false),
            processors: Processors::default(),
            script: Arc::default(),
            machine: Arc::clone(machine),
            ram: memory.ram(),
            device_bytes,
            userfault: None,
            looks: false,
            never_ran: false,
            ended: Arc::default(),
            shuts_down: false,
            is_shut_down: Some(false),
            checks: true,
            abandoned: false,
            frames: None,
            left_to_do: None,
        }
    }

    /// Loading accesses memory: several threads read the same few pages.
    fn touch(&self) -> Result<(), GuestError> {
        let memory = self.machine.memory(Side::Destination);
        let pages = memory.layout().pages();
        let look = || {
            [pages / 2, 1, pages - 1, 700 % pages]
                .into_iter()
                .find(|&page| memory.load(page) != self.machine.expected(page) && self.checks)
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(look)).collect();
            threads
                .into_iter()
                .find_map(|thread| thread.join().unwrap())
                .map_or(Ok(()), |page| {
                    Err(GuestError::new(format!(
                        "loading found wrong content in page {page}"
                    )))
                })
        })
    }
}

impl DestinationGuest for TestDestination {
    fn describe(&self) -> &GuestDescription {
        &self.description
    }

    fn hardware(&self) -> Hardware {
        Hardware {
            processors: self.processors.clone(),
            ..Hardware::default()
        }
    }

    fn process(&mut self) -> Option<&mut dyn DestinationProcess> {
        Some(self)
    }

    fn ram(&self) -> Arc<GuestRam> {
        Arc::clone(&self.ram)
    }

    fn prepare(&mut self) -> Result<(), GuestError> {
        self.script.call("prepare")
    }

    fn take_userfault(&mut self) -> Result<(Arc<Userfault>, Vec<u64>), GuestError> {
        self.script.call("take_userfault")?;
        let hosts = self.machine.memory(Side::Destination).hosts();
        if let Some(left) = &self.userfault {
            // An earlier engine left it in the process.
            return Ok((Arc::clone(left), hosts));
        }
        let userfault = Userfault::create_for_self(Features::FOR_MISSING).unwrap();
        let userfault = self.userfault.insert(Arc::new(userfault));
        Ok((Arc::clone(userfault), hosts))
    }

    fn load_device_state(&mut self, state: Vec<u8>) -> Result<(), GuestError> {
        self.script.call("load_device_state")?;
        assert!(state == device_state(self.device_bytes), "device state");
        self.touch()?;
        self.script.call("load_device_state done")
    }

    fn resume(&mut self, running: bool, give_up: &CancelFlag) -> Result<Instant, GuestError> {
        self.script.call("resume")?;
        if self.looks && running {
            // As a monitor may, right before the guest runs.
            let memory = Arc::clone(self.machine.memory(Side::Destination));
            let last = memory.layout().pages() - 3;
            let looking = std::thread::spawn(move || memory.load(last));
            while !looking.is_finished() {
                if give_up.is_cancelled() {
                    return Err(GuestError::new("cancelled while waiting for a page"));
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        if running {
            self.machine.run(Side::Destination);
        }
        Ok(Instant::now())
    }

    fn deliver_frames(&mut self) -> Result<Option<Box<dyn FrameDelivery>>, GuestError> {
        let frames = self.frames.take();
        Ok(frames.map(|frames| Box::new(frames) as Box<dyn FrameDelivery>))
    }

    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    fn kill(&mut self) -> Result<(), GuestError> {
        self.script.call("kill")?;
        self.machine.stop(Side::Destination, Duration::ZERO);
        self.ended.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn name_thread(&self, thread: u32) -> Option<ThreadName> {
        let comm = std::fs::read_to_string(format!("/proc/self/task/{thread}/comm")).ok()?;
        let name = comm.trim_end().to_owned();
        let vcpu = name.strip_prefix("cpu").and_then(|cpu| cpu.parse().ok());
        let kind = vcpu.map_or(FaultKind::Other, FaultKind::Vcpu);
        Some(ThreadName { name, kind })
    }

    fn abandon_userfault(&mut self) {
        let _ = self.script.call("abandon_userfault");
        self.abandoned = true;
    }

    fn release(&mut self) -> Result<(), GuestError> {
        self.script.call("release")?;
        self.userfault = None;
        Ok(())
    }
}

impl DestinationProcess for TestDestination {
    fn check_receiving(&mut self) -> Result<(), GuestError> {
        self.script.call("check_receiving")
    }

    fn is_shut_down(&mut self, limit: Duration) -> Option<bool> {
        // Nothing is read from the links meanwhile.
        assert!(limit < DestinationOptions::default().stall_timeout / 2);
        self.is_shut_down
    }

    fn has_shut_down(&mut self) -> bool {
        self.shuts_down
    }

    fn never_ran(&mut self) -> bool {
        self.never_ran
    }

    fn process_memory(&mut self) -> Option<(Arc<Process>, Vec<u64>)> {
        let own = Process::open(std::process::id()).unwrap();
        let hosts = self.machine.memory(Side::Destination).hosts();
        Some((Arc::new(own), hosts))
    }

    fn complete(&mut self) -> Option<String> {
        let _ = self.script.call("complete");
        self.left_to_do.clone()
    }
}
