//! Tasks: each has a stack, saved registers, and a processor on which it always runs.
//!
//! A task's own processor changes its state, with interrupts off; other processors only read it.

use crate::counters::{Counters, add};
use crate::fault_times::NotedFault;
use crate::interrupts::{TASK_CODE, TASK_DATA, yield_now};
use crate::memory;
use crate::net::{MOST_FILES, MOST_LINES};
use crate::processors;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};

/// The console's task, the workers, the network's task, and those of connections.
pub const MOST_TASKS: usize = 1 + MOST_WORKERS + 1 + MOST_LINES + MOST_FILES;
/// Most workers.
pub const MOST_WORKERS: usize = 128;
const STACK_BYTES: usize = 16 << 10;

/// What IRETQ takes from the stack.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    /// The next instruction.
    pub instruction: u64,
    /// The code segment, whose privilege level is the ring.
    pub code_segment: u64,
    /// The flags.
    pub flags: u64,
    /// The stack pointer.
    pub stack: u64,
    /// The stack segment.
    pub stack_segment: u64,
}

/// Interrupts on, and the bit that is always set.
pub const INTERRUPTS_ON: u64 = 0x202;
/// Interrupts off.
pub const INTERRUPTS_OFF: u64 = 0x2;

/// Saved registers.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Context {
    /// As FXSAVE stores the x87 and SSE registers.
    floating: [u8; 512],
    /// RAX, RBX, RCX, RDX, RSI, RDI, RBP, and R8 to R15.
    pub registers: [u64; 15],
    /// The rest.
    pub frame: Frame,
}

impl Context {
    /// Zeros: not to be run.
    pub const fn new() -> Self {
        Self {
            floating: [0; 512],
            registers: [0; 15],
            frame: Frame {
                instruction: 0,
                code_segment: 0,
                flags: 0,
                stack: 0,
                stack_segment: 0,
            },
        }
    }

    /// Makes this a new context that begins at `frame`, with RDI as the argument.
    pub fn begin(&mut self, frame: Frame, argument: u64) {
        self.floating = [0; 512];
        // Every exception masked, as the ABI has it: x87's control word, and MXCSR.
        self.floating[..2].copy_from_slice(&0x37f_u16.to_le_bytes());
        self.floating[24..28].copy_from_slice(&0x1f80_u32.to_le_bytes());
        self.registers = [0; 15];
        self.registers[5] = argument;
        self.frame = frame;
    }
}

/// What a task is doing.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u32)]
pub enum State {
    /// There is no such task.
    Unused = 0,
    /// Runs, or waits for its turn.
    Runnable = 1,
    /// Waits for a time.
    Sleeping = 2,
    /// Waits for a page (src/async_faults.rs).
    Faulted = 3,
    /// Waits for an event, or for a time.
    Waiting = 4,
}

/// A task.
#[repr(align(64))]
#[derive(Debug)]
pub struct Task {
    context: UnsafeCell<Context>,
    state: AtomicU32,
    processor: AtomicUsize,
    /// When a sleeping or waiting task is to run again.
    wake_at: AtomicU64,
    /// What it waits for.
    event: AtomicPtr<Event>,
    /// The event's count when it began to wait.
    seen: AtomicU32,
    /// The token of the page that a faulted one waits for.
    pub token: AtomicU32,
    /// When it began to wait: for its turn, or for its page.
    pub since: AtomicU64,
    /// When it last stopped running.
    pub left: AtomicU64,
    /// Ticks for which it ran.
    pub ran: AtomicU64,
    /// Ticks for which it was runnable, and another task ran.
    pub queued: AtomicU64,
    /// Ticks for which it did not run, since the start, for any reason.
    pub off: AtomicU64,
    /// Its asynchronous page faults.
    pub faults: AtomicU64,
    /// How long it waited for each page.
    pub waits: Counters,
    /// The fault that it waits for.
    pub noted: NotedFault,
}

// SAFETY: everything is atomic but the context. Only its own processor accesses that, with
// interrupts off, or the task's creator, before the task exists.
unsafe impl Sync for Task {}

/// Every task. The first is the console's.
pub static TASKS: [Task; MOST_TASKS] = [const { Task::new() }; MOST_TASKS];
/// How many exist.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// The tasks that exist.
pub fn all() -> &'static [Task] {
    &TASKS[..COUNT.load(Acquire)]
}

/// Starts the next task, on a processor. One task starts all. Returns its number.
pub fn spawn(processor: usize, entry: extern "C" fn(usize) -> !, argument: usize) -> usize {
    let number = COUNT.load(Relaxed);
    let task = &TASKS[number];
    let Some(stack) = memory::reserve(STACK_BYTES) else {
        crate::fail("not enough memory for the tasks");
    };
    let top = stack + STACK_BYTES;
    let frame = Frame {
        instruction: (entry as *const ()).expose_provenance() as u64,
        code_segment: TASK_CODE,
        flags: INTERRUPTS_ON,
        stack: top as u64 - 8, // as after a call
        stack_segment: TASK_DATA,
    };
    // SAFETY: no processor knows this task yet.
    unsafe { &mut *task.context.get() }.begin(frame, argument as u64);
    task.processor.store(processor, Relaxed);
    let now = crate::clock::ticks();
    task.since.store(now, Relaxed);
    task.left.store(now, Relaxed);
    task.set_state(State::Runnable);
    COUNT.store(number + 1, Release);
    number
}

impl Task {
    const fn new() -> Self {
        Self {
            context: UnsafeCell::new(Context::new()),
            state: AtomicU32::new(0),
            processor: AtomicUsize::new(0),
            wake_at: AtomicU64::new(0),
            event: AtomicPtr::new(core::ptr::null_mut()),
            seen: AtomicU32::new(0),
            token: AtomicU32::new(0),
            since: AtomicU64::new(0),
            left: AtomicU64::new(0),
            ran: AtomicU64::new(0),
            queued: AtomicU64::new(0),
            off: AtomicU64::new(0),
            faults: AtomicU64::new(0),
            waits: Counters::new(),
            noted: NotedFault::none(),
        }
    }

    /// The saved registers.
    pub fn context(&self) -> *mut Context {
        self.context.get()
    }

    /// The number of its processor.
    pub fn processor(&self) -> usize {
        self.processor.load(Relaxed)
    }

    /// What it is doing.
    pub fn state(&self) -> State {
        match self.state.load(Acquire) {
            1 => State::Runnable,
            2 => State::Sleeping,
            3 => State::Faulted,
            4 => State::Waiting,
            _ => State::Unused,
        }
    }

    /// Changes what it is doing. An interrupt that sees the change also sees what it waits for.
    pub fn set_state(&self, state: State) {
        self.state.store(state as u32, Release);
    }

    /// Makes it runnable if what it waits for has come; says whether it is runnable.
    pub fn is_runnable_at(&self, now: u64) -> bool {
        if self.is_due(now) && self.state() != State::Runnable {
            self.since.store(now, Relaxed);
            self.set_state(State::Runnable);
        }
        self.state() == State::Runnable
    }

    /// Whether it could run now.
    fn is_due(&self, now: u64) -> bool {
        match self.state() {
            State::Runnable => true,
            State::Sleeping => self.wake_at.load(Relaxed) <= now,
            State::Waiting => self.wake_at.load(Relaxed) <= now || self.has_happened(),
            State::Unused | State::Faulted => false,
        }
    }

    /// Whether the event that it waits for has happened.
    fn has_happened(&self) -> bool {
        // SAFETY: null, or an event, which is static.
        let event = unsafe { self.event.load(Relaxed).as_ref() };
        event.is_some_and(|event| event.count() != self.seen.load(Relaxed))
    }

    /// It has its turn: the time until `now` was waiting.
    pub fn dequeue(&self, now: u64) {
        add(&self.queued, now.saturating_sub(self.since.load(Relaxed)));
    }
}

/// The task that calls this.
pub fn current() -> &'static Task {
    &TASKS[processors::current().task()]
}

/// Lets others run until the counter reaches `time`; longer, up to the timer's next interrupt.
pub fn sleep_until(time: u64) {
    let task = current();
    task.wake_at.store(time, Relaxed);
    // An interrupt from here on may already put the task to sleep, which is the same.
    task.set_state(State::Sleeping);
    yield_now();
}

/// Something that tasks wait for.
#[derive(Debug)]
pub struct Event {
    /// How often it has happened.
    count: AtomicU32,
    /// The processor of the task that waited last.
    processor: AtomicUsize,
}

impl Event {
    /// It has not happened.
    pub const fn new() -> Self {
        Self {
            count: AtomicU32::new(0),
            processor: AtomicUsize::new(0),
        }
    }

    /// How often it has happened. A task reads this before it looks for what the event announces,
    /// and then waits for more.
    pub fn count(&self) -> u32 {
        self.count.load(SeqCst)
    }

    /// It happens: every task that waits for it can run. The processor of the task that waited last
    /// learns of it at once, another one at its timer's next interrupt.
    pub fn notify(&self) {
        self.count.fetch_add(1, SeqCst);
        processors::wake(self.processor.load(SeqCst));
    }

    /// Waits until it has happened more often than `seen`.
    pub fn wait(&'static self, seen: u32) {
        self.wait_until(seen, u64::MAX);
    }

    /// Waits until it has happened more often than `seen`, at most until the counter reaches
    /// `time`.
    pub fn wait_until(&'static self, seen: u32, time: u64) {
        let task = current();
        self.processor.store(task.processor(), SeqCst);
        task.wake_at.store(time, Relaxed);
        task.seen.store(seen, Relaxed);
        task.event.store((&raw const *self).cast_mut(), Relaxed);
        // As in `sleep_until`.
        task.set_state(State::Waiting);
        yield_now();
    }
}

/// Lets another task of this processor run, if one could.
pub fn yield_to_others(now: u64) {
    let this = current();
    let other = |task: &Task| {
        !core::ptr::eq(task, this) && task.processor() == this.processor() && task.is_due(now)
    };
    if all().iter().any(other) {
        yield_now();
    }
}
