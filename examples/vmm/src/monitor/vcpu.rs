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
use crate::monitor::ports::Ports;

/// What the processor's thread shares with the monitor.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) ports: Mutex<Ports>,
    /// The log to harvest when the dirty ring is full.
    pub(crate) ring_log: Mutex<Option<Arc<KvmLog>>>,
}

/// Locks what is shared. A thread that panicked has left it as it was.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A processor that runs. Dropping it stops it: the memory may be unmapped afterwards.
#[derive(Debug)]
pub(crate) struct RunningVcpu {
    stop: Arc<AtomicBool>,
    /// The thread's number, or 0 before it has begun.
    thread_id: Arc<AtomicU32>,
    /// `None` once it has ended and was joined.
    thread: Option<JoinHandle<Result<VcpuFd>>>,
}

impl RunningVcpu {
    pub(crate) fn start(number: u32, mut vcpu: VcpuFd, shared: Arc<Shared>) -> Result<Self> {
        register_signal_handler(SIGRTMIN(), interrupted)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread_id = Arc::new(AtomicU32::new(0));
        let own_id = Arc::clone(&thread_id);
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
            thread: Some(thread),
        })
    }

    /// The thread that runs it.
    pub(crate) fn thread_id(&self) -> u32 {
        self.thread_id.load(Ordering::Relaxed)
    }

    /// Asks the processor to leave the guest.
    pub(crate) fn request_stop(&self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        match &self.thread {
            Some(thread) if !thread.is_finished() => Ok(thread.kill(SIGRTMIN())?),
            _ => Ok(()),
        }
    }

    /// Waits until the processor has left the guest.
    pub(crate) fn stop(mut self) -> Result<VcpuFd> {
        self.join()
    }

    fn join(&mut self) -> Result<VcpuFd> {
        // A signal has no effect if it arrives right before the thread enters the guest. So there
        // is another one a little later.
        while !self.has_ended() {
            self.request_stop()?;
            thread::sleep(Duration::from_micros(50));
        }
        let thread = self.thread.take();
        let thread = thread.ok_or("the processor's thread has been joined already")?;
        thread
            .join()
            .map_err(|_| "the processor's thread panicked")?
    }

    /// Whether the processor has ended, because the guest has.
    pub(crate) fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Drop for RunningVcpu {
    fn drop(&mut self) {
        if self.thread.is_some() {
            let _ = self.join();
        }
    }
}

/// Signals only make `KVM_RUN` return.
extern "C" fn interrupted(_: libc::c_int, _: *mut libc::siginfo_t, _: *mut libc::c_void) {}

/// Runs the guest until it needs the monitor.
fn run(vcpu: &mut VcpuFd, shared: &Shared) -> Result<()> {
    match vcpu.run() {
        Ok(VcpuExit::IoIn(port, data)) => lock(&shared.ports).read(port, data),
        Ok(VcpuExit::IoOut(port, data)) => lock(&shared.ports).write(port, data)?,
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
