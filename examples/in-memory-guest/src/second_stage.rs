//! The second stage of a hypervisor of one's own: `hikkoshi-ept`'s tables between the guest's
//! processor and its memory, with a software processor in place of the real one.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hikkoshi_dirty::{EptLog, EptStartError};
use hikkoshi_ept::testing::{Access, Cpu, Exit, TestMemory};
use hikkoshi_ept::{
    Capabilities, Gfn, GfnRange, Guest, HostFrame, LogMethod, Mapping, PML_HEAD_INDEX, Processors,
    TlbFlush, Vcpu, View, ViolationOutcome,
};
use hikkoshi_pages::RamLayout;

/// The host frame of the guest's first frame.
const FIRST_FRAME: HostFrame = HostFrame::new(1 << 20);

/// Tables, and the one virtual processor that uses them.
#[derive(Debug)]
pub(crate) struct SecondStage {
    guest: Arc<Guest<TestMemory>>,
    vcpu: Vcpu,
    /// The processor is in the guest while this is locked.
    cpu: Mutex<Cpu>,
}

impl SecondStage {
    /// Maps all frames of a guest.
    pub(crate) fn new(frames: u64) -> io::Result<Self> {
        // Twice the tables for 4 KiB leaves: the reverse map and the log need frames as well.
        let tables = TestMemory::new(frames / 256 + 64);
        let guest = Guest::new(tables, frames, 1, Capabilities::ALL).map_err(io::Error::other)?;
        let all = GfnRange::from_len(Gfn::new(0), frames);
        guest
            .map(View::MAIN, &Mapping::ram(all, FIRST_FRAME))
            .map_err(io::Error::other)?;
        let vcpu = guest.add_vcpu().map_err(io::Error::other)?;
        let cpu = Cpu::new(View::MAIN, guest.main_eptp(), guest.capabilities());
        Ok(Self {
            guest: Arc::new(guest),
            vcpu,
            cpu: Mutex::new(cpu),
        })
    }

    /// Logs the guest's writes.
    pub(crate) fn start_log(
        self: &Arc<Self>,
        layout: &RamLayout,
        method: LogMethod,
    ) -> Result<EptLog<TestMemory, Arc<Self>>, EptStartError> {
        EptLog::start(Arc::clone(&self.guest), Arc::clone(self), layout, method)
    }

    /// The processor translates a guest-physical address, and then accesses the memory at the
    /// offset that `access_memory` is given.
    pub(crate) fn access<R>(
        &self,
        address: u64,
        access: Access,
        access_memory: impl FnOnce(u64) -> R,
    ) -> io::Result<R> {
        loop {
            let mut cpu = self.lock();
            match cpu.access(self.guest.memory(), address, access) {
                Ok(host) => return Ok(access_memory(host - FIRST_FRAME.address())),
                Err(Exit::PmlFull) => {
                    cpu.pml_index = self.guest.drain_pml(self.vcpu, cpu.pml_index);
                }
                Err(Exit::Violation {
                    address,
                    qualification,
                }) => {
                    drop(cpu);
                    let outcome =
                        self.guest
                            .handle_ept_violation(View::MAIN, address, qualification);
                    if outcome != ViolationOutcome::Resume {
                        return Err(io::Error::other(format!("{outcome:?} at {address:#x}")));
                    }
                }
                Err(exit) => return Err(io::Error::other(format!("{exit:?}"))),
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Cpu> {
        self.cpu.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Taking the lock makes the processor leave the guest. On hardware: an interrupt, and `INVEPT`,
/// `VMREAD` and `VMWRITE`.
impl Processors for SecondStage {
    fn invalidate(&self, flush: &TlbFlush) {
        for eptp in self.guest.eptps(flush) {
            self.lock().invalidate(eptp, flush);
        }
    }

    fn drain_pml(&self, drain: &dyn Fn(Vcpu, u16) -> u16) {
        let mut cpu = self.lock();
        cpu.pml_index = drain(self.vcpu, cpu.pml_index);
    }

    fn set_pml(&self, on: bool) {
        let mut cpu = self.lock();
        cpu.pml = self.guest.pml_address(self.vcpu).filter(|_| on);
        cpu.pml_index = PML_HEAD_INDEX;
    }
}
