//! Callbacks to the hypervisor must not deadlock. Starting, stopping and taking a log wait for the
//! processors. Meanwhile a processor may be anywhere: in an exit handler, adding a vCPU, or trying
//! to start a log itself, with interrupts disabled. None of these may wait for the thread that
//! waits for the processors.
#![cfg(not(loom))]
// Helpers outside the test functions: an unwrap that fails is a test failure too.
#![allow(clippy::unwrap_used)]

use std::cell::Cell;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use hikkoshi_ept::testing::TestMemory;
use hikkoshi_ept::{
    Capabilities, ExitQualification, Gfn, GfnRange, Guest, HostFrame, Level, LogMethod, Mapping,
    Processors, StartError, StopError, TlbFlush, Vcpu, View, ViolationOutcome,
};

/// Processors that, before they respond to a callback, finish every operation that a processor may
/// be executing.
struct InterruptedProcessors<'g> {
    guest: &'g Guest<TestMemory>,
    vcpu: Vcpu,
    calls: Cell<[u32; 3]>,
    /// Whether a log is being started or stopped, and not only taken.
    changing: Cell<bool>,
}

impl InterruptedProcessors<'_> {
    fn call(&self, number: usize) {
        let mut calls = self.calls.get();
        calls[number] += 1;
        self.calls.set(calls);
        let (guest, vcpu, changing) = (self.guest, self.vcpu, self.changing.get());
        let (send, done) = channel();
        thread::scope(|scope| {
            scope.spawn(move || {
                operations_of_a_processor(guest, vcpu, changing);
                send.send(()).unwrap();
            });
            // Not a timing check: only ends a test that hangs.
            if done.recv_timeout(Duration::from_secs(60)) == Err(RecvTimeoutError::Timeout) {
                // Deadlock: a processor waits for the thread that waits for it. A panic would wait
                // for it too.
                std::process::abort();
            }
        });
    }
}

fn operations_of_a_processor(guest: &Guest<TestMemory>, vcpu: Vcpu, changing: bool) {
    let page = GfnRange::from_len(Gfn::new(700), 1);
    let exit = guest.handle_ept_violation(View::MAIN, 700 << 12, ExitQualification(2));
    assert_eq!(exit, ViolationOutcome::Resume);
    guest.drain_pml(vcpu, 511);
    let flush = guest.unmap(View::MAIN, page);
    guest.flush(flush, &());
    let mapping = Mapping::ram(page, HostFrame::new(1700));
    guest.map(View::MAIN, &mapping).unwrap();
    guest.mark_dirty(page);
    let split = guest.split(View::MAIN, Gfn::new(0), Level::Size4K).unwrap();
    guest.flush(split, &());
    let added = guest.add_vcpu().unwrap();
    guest.remove_vcpu(added, 511);
    if changing {
        let start = guest.start_log(LogMethod::Pml, page, &());
        assert_eq!(start, Err(StartError::Busy));
        assert_eq!(guest.stop_log(page, &()), Err(StopError::Busy));
    }
}

impl Processors for InterruptedProcessors<'_> {
    fn invalidate(&self, _: &TlbFlush) {
        self.call(0);
    }

    fn drain_pml(&self, drain: &dyn Fn(Vcpu, u16) -> u16) {
        self.call(1);
        drain(self.vcpu, 511);
    }

    fn set_pml(&self, _: bool) {
        self.call(2);
    }
}

#[test]
fn nothing_is_held_during_callbacks() {
    let guest = Guest::new(TestMemory::new(60), 1024, 2, Capabilities::ALL).unwrap();
    let vcpu = guest.add_vcpu().unwrap();
    let mapping = Mapping::ram(guest.all(), HostFrame::new(1000 + 24));
    guest.map(View::MAIN, &mapping).unwrap();
    let processors = InterruptedProcessors {
        guest: &guest,
        vcpu,
        calls: Cell::new([0; 3]),
        changing: Cell::new(true),
    };
    guest
        .start_log(LogMethod::Pml, guest.all(), &processors)
        .unwrap();
    assert_eq!(processors.calls.get(), [1, 0, 1]);
    processors.changing.set(false);
    guest.mark_dirty(guest.all());
    guest
        .take_log(guest.all(), &processors, &mut |_| ())
        .unwrap();
    guest.count_dirty(guest.all(), &processors).unwrap();
    assert_eq!(processors.calls.get(), [2, 2, 1]);
    processors.changing.set(true);
    guest.stop_log(guest.all(), &processors).unwrap();
    assert_eq!(processors.calls.get(), [2, 3, 2]);
}
