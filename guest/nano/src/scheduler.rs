//! The scheduler: what a processor does after an interrupt.
//!
//! It runs in ring 3 with interrupts off. Each processor has its own tasks, so it needs no lock:
//! they run in turn, each until the timer's next interrupt, until it sleeps, or until it accesses a
//! page that is not there. The console's task runs whenever it is due, and the network's when the
//! card interrupts. A processor without a runnable task halts.

use crate::apic;
use crate::async_faults::{self, NotPresent};
use crate::clock::ticks;
use crate::counters::add;
use crate::interrupts::{
    self, EXCEPTIONS, INVALID_OPCODE, Interrupt, NETWORK, PAGE_FAULT, PAGE_READY, SPURIOUS, TIMER,
    WAKE,
};
use crate::net;
use crate::processors::{IDLE, Processor};
use crate::tasks::{self, Context, TASKS};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// The console's task.
const CONSOLE: usize = 0;

/// Indices of [`Processor::times`].
pub const IN_TASKS: usize = 0;
/// Halted.
pub const IN_IDLE: usize = 1;
/// In the scheduler itself.
pub const IN_SCHEDULER: usize = 2;

/// Handles an interrupt, and returns what is to run next. `leave_to` calls this.
pub extern "C" fn interrupted(processor: &'static Processor) -> *const Context {
    let now = ticks();
    let mut interrupt = processor.interrupt();
    let yields = interrupt.vector == INVALID_OPCODE
        && interrupt.frame.instruction == interrupts::yield_address();
    if yields {
        interrupt.frame.instruction += 2;
    }
    let previous = processor.task();
    account(processor, previous, now);
    save_frame(processor, previous, &interrupt);
    let mut preferred = IDLE;
    let must_switch = match interrupt.vector {
        INVALID_OPCODE if yields => true,
        PAGE_FAULT => match async_faults::not_present(processor) {
            Some(NotPresent { token }) => async_faults::park(processor, token, now),
            None => fail(processor, &interrupt),
        },
        PAGE_READY => {
            async_faults::page_ready(processor, now);
            apic::end_of_interrupt();
            previous == IDLE
        }
        TIMER => {
            apic::end_of_interrupt();
            true
        }
        WAKE => {
            apic::end_of_interrupt();
            previous == IDLE
        }
        NETWORK => {
            apic::end_of_interrupt();
            net::WORK.notify();
            preferred = NETWORK_TASK.load(Relaxed);
            true
        }
        SPURIOUS => false,
        ..EXCEPTIONS => fail(processor, &interrupt),
        _ => true,
    };
    let next = if must_switch {
        choose(processor, previous, preferred, now)
    } else {
        previous
    };
    resume(processor, previous, next, now)
}

/// What this processor runs first.
pub fn first(processor: &'static Processor) -> *const Context {
    let now = ticks();
    let next = choose(processor, IDLE, IDLE, now);
    resume(processor, IDLE, next, now)
}

/// How long it takes to enter the scheduler and to return, in ticks, while there is no other task.
pub static SWITCH: AtomicU64 = AtomicU64::new(0);

/// Measures this, in a task. Where ring 0 is interpreted, it is much.
pub fn measure_switch() {
    let one = || {
        let before = ticks();
        interrupts::yield_now();
        ticks() - before
    };
    SWITCH.store((0..16).map(|_| one()).min().unwrap_or(0), Relaxed);
}

/// The time since the task or the idle loop was resumed belongs to it, but for the way from here
/// and back.
fn account(processor: &Processor, previous: usize, now: u64) {
    let passed = now.saturating_sub(processor.resumed.load(Relaxed));
    let switch = SWITCH.load(Relaxed).min(passed);
    add(&processor.times[IN_SCHEDULER], switch);
    let ran = passed - switch;
    if previous == IDLE {
        add(&processor.times[IN_IDLE], ran);
        return;
    }
    add(&processor.times[IN_TASKS], ran);
    let task = &TASKS[previous];
    add(&task.ran, ran);
    task.since.store(now, Relaxed);
    task.left.store(now, Relaxed);
}

fn save_frame(processor: &Processor, previous: usize, interrupt: &Interrupt) {
    let context = context_of(processor, previous);
    // SAFETY: this processor's, and interrupts are off.
    unsafe { (*context).frame = interrupt.frame };
}

fn context_of(processor: &Processor, task: usize) -> *mut Context {
    if task == IDLE {
        processor.idle()
    } else {
        TASKS[task].context()
    }
}

/// The number of the network's task, which runs next when the card interrupts; [`IDLE`]: none.
pub static NETWORK_TASK: AtomicUsize = AtomicUsize::new(IDLE);

/// The next task. Without one, a last look follows after other processors can wake this one.
fn choose(processor: &Processor, previous: usize, preferred: usize, now: u64) -> usize {
    match find(processor, previous, preferred, now) {
        IDLE => {
            processor.begin_to_idle();
            find(processor, previous, preferred, now)
        }
        task => task,
    }
}

/// The console's task if it is due and has not just run, else the preferred one if it can run, else
/// the one whose turn it is.
fn find(processor: &Processor, previous: usize, preferred: usize, now: u64) -> usize {
    let tasks = tasks::all();
    let number = processor.number();
    let runs = |task: usize| tasks[task].processor() == number && tasks[task].is_runnable_at(now);
    if tasks.is_empty() {
        return IDLE;
    }
    if previous != CONSOLE && runs(CONSOLE) {
        return CONSOLE;
    }
    if preferred < tasks.len() && runs(preferred) {
        return preferred;
    }
    let last = processor.last.load(Relaxed);
    let turn = (last + 1..tasks.len())
        .chain(1..(last + 1).min(tasks.len()))
        .find(|&task| runs(task));
    if let Some(task) = turn {
        processor.last.store(task, Relaxed);
        return task;
    }
    if runs(CONSOLE) { CONSOLE } else { IDLE }
}

/// Stores what the processor is to return to.
fn resume(processor: &Processor, previous: usize, next: usize, entered: u64) -> *const Context {
    let context = context_of(processor, next);
    // SAFETY: this processor's, and interrupts are off.
    processor.set_frame(unsafe { (*context).frame });
    processor.set_task(next);
    if next != previous {
        add(&processor.switches, 1);
    }
    let now = ticks();
    if next != previous && previous != IDLE {
        TASKS[previous].noted.leave(now);
    }
    if next != IDLE {
        let task = &TASKS[next];
        let left = task.left.load(Relaxed);
        // With the way here and back, which is counted as the scheduler's.
        let switch = SWITCH.load(Relaxed);
        add(&task.off, now.saturating_sub(left) + switch);
        if next != previous {
            task.dequeue(now);
            task.noted.resume(now);
        }
    }
    add(&processor.times[IN_SCHEDULER], now.saturating_sub(entered));
    processor.resumed.store(now, Relaxed);
    context
}

/// Ends the run: an exception that nothing has caused on purpose.
fn fail(processor: &Processor, interrupt: &Interrupt) -> ! {
    let Interrupt {
        vector,
        error_code,
        frame,
    } = interrupt;
    // SAFETY: this processor's, and interrupts are off.
    let fault_address = unsafe { *processor.fault_address.get() };
    crate::fail(format_args!(
        "exception {vector}, error code {error_code:#x}, at {:#x}, fault address {fault_address:#x}",
        frame.instruction
    ))
}
