//! KVM's asynchronous page faults: while a page is on its way, another task runs.
//!
//! If a task accesses a page that the host does not have at hand, KVM raises a page fault whose
//! address is a token, and says so in the processor's shared area. The task waits. When the page is
//! there, KVM stores the token in the shared area and interrupts. Described in the kernel's
//! `Documentation/virt/kvm/x86/msr.rst`.
//!
//! After a move, KVM no longer knows the tokens of the other host: it sends one for all
//! ([`EVERY_TOKEN`]), and each task tries its access again.

use crate::config;
use crate::counters::add;
use crate::interrupts::{PAGE_READY, write_msr};
use crate::processors::{IDLE, Processor};
use crate::tasks::{self, State, TASKS, Task};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};

const ENABLE: u32 = 0x4b56_4d02;
const VECTOR: u32 = 0x4b56_4d06;
const ACKNOWLEDGE: u32 = 0x4b56_4d07;

/// In [`ENABLE`]: on, and ready events are delivered by interrupt. Without bit 1, tasks are
/// interrupted only in ring 3: the scheduler runs with interrupts off, where KVM waits for the page
/// instead.
const ON_BY_INTERRUPT: u64 = 1 << 0 | 1 << 3;

/// In the features of KVM: asynchronous page faults, and ready events by interrupt.
const FEATURES: u32 = 1 << 4 | 1 << 14;
/// In the shared area's flags: the page fault is a *not present* event.
const NOT_PRESENT: u32 = 1;
/// The token that is for every waiting task of the processor.
const EVERY_TOKEN: u32 = u32::MAX;
/// How many ready events that no task waited for are remembered.
const EARLY: usize = 8;

/// The area that KVM writes, and this guest clears, and what belongs to it.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Shared {
    flags: AtomicU32,
    token: AtomicU32,
    padding: [u8; 56],
    /// Tokens that were ready before a task waited for them.
    early: [AtomicU32; EARLY],
    next_early: AtomicUsize,
    /// Events so far.
    pub events: Events,
}

/// Events so far. The processor counts, with interrupts off.
#[derive(Debug)]
pub struct Events {
    /// A page is not present.
    pub not_present: AtomicU64,
    /// A page is ready.
    pub ready: AtomicU64,
    /// Every task is to try again.
    pub broadcasts: AtomicU64,
    /// A page was ready before its task waited, or after it no longer did.
    pub unmatched: AtomicU64,
}

impl Shared {
    /// Nothing has happened.
    pub const fn new() -> Self {
        Self {
            flags: AtomicU32::new(0),
            token: AtomicU32::new(0),
            padding: [0; 56],
            early: [const { AtomicU32::new(0) }; EARLY],
            next_early: AtomicUsize::new(0),
            events: Events {
                not_present: AtomicU64::new(0),
                ready: AtomicU64::new(0),
                broadcasts: AtomicU64::new(0),
                unmatched: AtomicU64::new(0),
            },
        }
    }

    /// Forgets a ready event that was early; says whether there was one.
    fn take_early(&self, token: u32) -> bool {
        let early = self.early.iter().find(|early| early.load(Relaxed) == token);
        early.map(|early| early.store(0, Relaxed)).is_some()
    }

    fn forget_early(&self) {
        for early in &self.early {
            early.store(0, Relaxed);
        }
    }

    fn remember(&self, token: u32) {
        let at = self.next_early.load(Relaxed);
        self.early[at].store(token, Relaxed);
        self.next_early.store((at + 1) % EARLY, Relaxed);
    }
}

static WANTED: AtomicBool = AtomicBool::new(false);

unsafe extern "C" {
    /// KVM's features; 0 without KVM (src/boot.rs).
    static kvm_features: AtomicU32;
}

/// Decides whether the processors are to use them: not if the command line says so, and not if the
/// host has none. Returns whether they do.
pub fn want(wanted: bool) -> bool {
    // SAFETY: a number, which the boot code has stored.
    let features = unsafe { &kvm_features }.load(Relaxed);
    let on = wanted && features & FEATURES == FEATURES;
    WANTED.store(on, Relaxed);
    on
}

/// Whether they are used.
pub fn are_on() -> bool {
    WANTED.load(Relaxed)
}

/// Switches them on for this processor, if they are to be used.
pub fn enable(processor: &'static Processor) {
    if !are_on() {
        return;
    }
    let area = (&raw const processor.shared).expose_provenance() as u64;
    // SAFETY: the registers exist by KVM's features; KVM writes into the first 64 bytes of the
    // shared area, which are atomic numbers, and raises events whose handlers are installed.
    unsafe {
        write_msr(VECTOR, PAGE_READY.into());
        write_msr(ENABLE, area | ON_BY_INTERRUPT);
    }
}

/// A *not present* event.
#[derive(Clone, Copy, Debug)]
pub struct NotPresent {
    /// What the ready event will name.
    pub token: u32,
}

/// Whether a page fault is a *not present* event; then the next one may be delivered.
pub fn not_present(processor: &Processor) -> Option<NotPresent> {
    if processor.shared.flags.swap(0, SeqCst) & NOT_PRESENT == 0 {
        return None;
    }
    // SAFETY: this processor's, and interrupts are off.
    let address = unsafe { *processor.fault_address.get() };
    let token = u32::try_from(address).ok()?;
    Some(NotPresent { token })
}

/// Lets the task that runs wait for its page; says whether another has to run.
pub fn park(processor: &Processor, token: u32, now: u64) -> bool {
    add(&processor.shared.events.not_present, 1);
    let task = processor.task();
    if task == IDLE || processor.shared.take_early(token) {
        return false;
    }
    let task = &TASKS[task];
    add(&task.faults, 1);
    task.token.store(token, Relaxed);
    task.since.store(now, Relaxed);
    task.noted.begin(token, now);
    task.set_state(State::Faulted);
    true
}

/// A ready event: makes its task runnable, and lets KVM send the next.
pub fn page_ready(processor: &Processor, now: u64) {
    let shared = &processor.shared;
    let token = shared.token.swap(0, SeqCst);
    if token != 0 {
        add(&shared.events.ready, 1);
        make_runnable(processor, token, now);
    }
    // SAFETY: KVM looks for the next event, for which there is room.
    unsafe { write_msr(ACKNOWLEDGE, 1) };
}

fn make_runnable(processor: &Processor, token: u32, now: u64) {
    let shared = &processor.shared;
    let mut waiting = tasks::all()
        .iter()
        .filter(|task| task.state() == State::Faulted);
    if token == EVERY_TOKEN {
        add(&shared.events.broadcasts, 1);
        shared.forget_early();
        waiting
            .filter(|task| task.processor() == processor.number())
            .for_each(|task| wake(task, now));
        return;
    }
    // KVM sends the event to the processor that faulted, but does not promise to.
    match waiting.find(|task| task.token.load(Relaxed) == token) {
        Some(task) => wake(task, now),
        None => {
            add(&shared.events.unmatched, 1);
            shared.remember(token);
        }
    }
}

fn wake(task: &Task, now: u64) {
    let waited = now.saturating_sub(task.since.load(Relaxed));
    task.waits.record(&config::get().scale, waited);
    task.since.store(now, Relaxed);
    task.noted.ready(now);
    task.set_state(State::Runnable);
}
