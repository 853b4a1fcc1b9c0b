//! A virtual processor: a thread that runs it, and leaves the guest on request.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use hikkoshi_dirty::KvmLog;
use kvm_bindings::KVM_EXIT_DIRTY_RING_FULL;
use kvm_ioctls::{VcpuExit, VcpuFd};
use vmm_sys_util::signal::{Killable, SIGRTMIN, register_signal_handler};

use crate::Result;
use crate::monitor::devices::Devices;

/// What the processors' threads share with the machine.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) devices: Mutex<Devices>,
    /// The log to harvest when the dirty ring is full.
    pub(crate) ring_log: Mutex<Option<Arc<KvmLog>>>,
}

/// Locks what is shared. A thread that panicked has left it as it was.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A processor that runs.
#[derive(Debug)]
pub(crate) struct RunningVcpu {
    stop: Arc<AtomicBool>,
    /// The thread's number, or 0 before it has begun.
    thread_id: Arc<AtomicU32>,
    thread: JoinHandle<Result<VcpuFd>>,
}

impl RunningVcpu {
    pub(crate) fn start(number: usize, mut vcpu: VcpuFd, shared: Arc<Shared>) -> Result<Self> {
        register_signal_handler(SIGRTMIN(), interrupted)?;
        let stop = Arc::new(AtomicBool::new(false));
        let thread_id = Arc::new(AtomicU32::new(0));
        let (stopped, own_id) = (Arc::clone(&stop), Arc::clone(&thread_id));
        let thread = thread::Builder::new().name(format!("vcpu{number}"));
        let thread = thread.spawn(move || {
            let id = rustix::thread::gettid().as_raw_nonzero().get();
            own_id.store(id.unsigned_abs(), Ordering::Relaxed);
            while !stopped.load(Ordering::Relaxed) {
                run(&mut vcpu, &shared)?;
            }
            complete_exit(&mut vcpu)?;
            Ok(vcpu)
        })?;
        Ok(Self {
            stop,
            thread_id,
            thread,
        })
    }

    /// The thread that runs it.
    pub(crate) fn thread_id(&self) -> u32 {
        self.thread_id.load(Ordering::Relaxed)
    }

    /// Asks the processor to leave the guest.
    pub(crate) fn request_stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        // It may have ended.
        let _ = self.thread.kill(SIGRTMIN());
    }

    /// Waits until the processor has left the guest.
    pub(crate) fn stop(self) -> Result<VcpuFd> {
        // A signal has no effect if it arrives right before the thread enters the guest. So there
        // is another one a little later.
        while !self.has_ended() {
            self.request_stop();
            thread::sleep(Duration::from_micros(50));
        }
        let ended = self.thread.join();
        ended.map_err(|_| "the processor's thread panicked")?
    }

    /// Whether the processor has ended, because the guest has.
    pub(crate) fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }
}

/// Signals only make `KVM_RUN` return.
extern "C" fn interrupted(_: libc::c_int, _: *mut libc::siginfo_t, _: *mut libc::c_void) {}

/// Runs the guest until it needs the monitor.
fn run(vcpu: &mut VcpuFd, shared: &Shared) -> Result<()> {
    match vcpu.run() {
        Ok(VcpuExit::IoIn(port, data)) => lock(&shared.devices).read(port, data),
        Ok(VcpuExit::IoOut(port, data)) => lock(&shared.devices).write(port, data)?,
        Ok(VcpuExit::MmioRead(_, data)) => data.fill(0xff),
        Ok(VcpuExit::MmioWrite(..)) => {}
        Ok(VcpuExit::Unsupported(KVM_EXIT_DIRTY_RING_FULL)) => {
            let log = lock(&shared.ring_log).clone();
            log.ok_or("the dirty ring is full, and there is no log")?
                .harvest()?;
        }
        Err(error) if matches!(error.errno(), libc::EINTR | libc::EAGAIN) => {}
        other => return Err(format!("the processor has stopped: {other:?}").into()),
    }
    Ok(())
}

/// KVM finishes an instruction that needed the monitor (such as IN) when the guest is entered
/// again. The state must be saved after that.
fn complete_exit(vcpu: &mut VcpuFd) -> Result<()> {
    vcpu.set_kvm_immediate_exit(1);
    let result = match vcpu.run() {
        Err(error) if matches!(error.errno(), libc::EINTR | libc::EAGAIN) => Ok(()),
        other => Err(format!("completing an instruction: {other:?}").into()),
    };
    vcpu.set_kvm_immediate_exit(0);
    result
}
