//! Starting the processors: the first one's timer, and the others by INIT and SIPI.

use crate::apic;
use crate::async_faults;
use crate::clock::{Clock, ticks};
use crate::interrupts;
use crate::port;
use crate::processors::{self, MOST_PROCESSORS, PROCESSORS, Processor};
use crate::scheduler;
use core::ptr::{copy_nonoverlapping, with_exposed_provenance_mut};
use core::sync::atomic::{AtomicU32, Ordering::*};

/// Where the other processors start, in memory that the firmware no longer needs.
const TRAMPOLINE: usize = 0x8000;
/// The page that this is, as a start-up message names it.
const TRAMPOLINE_PAGE: u32 = 8;

/// The timer's count for a slice of a task's time.
static TIMER_COUNT: AtomicU32 = AtomicU32::new(0);

unsafe extern "C" {
    static trampoline: u8;
    static trampoline_end: u8;
    /// The number of the processor that is being started (src/boot.rs).
    static starting_processor: AtomicU32;
}

/// Starts the timer for the first processor, and then the other processors: as many as QEMU says.
pub fn start_all(clock: Clock, slice_us: u64) -> Result<(), &'static str> {
    apic::mask_other_interrupts();
    apic::enable();
    TIMER_COUNT.store(apic::timer_count(clock, slice_us), Relaxed);
    async_faults::enable(&PROCESSORS[0]);
    let count = processors_of_machine().clamp(1, MOST_PROCESSORS);
    if count > 1 {
        copy_trampoline();
    }
    for (processor, number) in PROCESSORS[..count].iter().zip(0..).skip(1) {
        start_one(processor, number, clock)?;
    }
    processors::set_count(count);
    Ok(())
}

fn copy_trampoline() {
    let start = (&raw const trampoline).expose_provenance();
    let length = (&raw const trampoline_end).expose_provenance() - start;
    // SAFETY: this is ordinary memory, which the firmware and QEMU's start information no longer
    // need: the command line has been read.
    unsafe {
        copy_nonoverlapping(
            &raw const trampoline,
            with_exposed_provenance_mut(TRAMPOLINE),
            length,
        );
    }
}

fn start_one(processor: &Processor, number: u32, clock: Clock) -> Result<(), &'static str> {
    let is_online_within = |us| {
        let end = ticks() + clock.ticks_of_us(us);
        while ticks() < end && !processor.online.load(Acquire) {
            core::hint::spin_loop();
        }
        processor.online.load(Acquire)
    };
    // SAFETY: a number, which the started processor reads.
    unsafe { &starting_processor }.store(number, SeqCst);
    apic::send_init(number);
    is_online_within(10_000);
    for _ in 0..2 {
        apic::send_startup(number, TRAMPOLINE_PAGE);
        // A busy host may take long to run a processor in ring 0.
        if is_online_within(10_000_000) {
            return Ok(());
        }
    }
    Err("a processor does not start")
}

/// What the others do when they have started.
pub fn join(processor: &'static Processor) -> ! {
    apic::enable();
    async_faults::enable(processor);
    processor.online.store(true, Release);
    run(processor)
}

/// Starts the timer, and runs this processor's tasks.
pub fn run(processor: &'static Processor) -> ! {
    apic::start_timer(TIMER_COUNT.load(Relaxed));
    interrupts::enter(scheduler::first(processor))
}

/// The number of processors, from QEMU's configuration device.
fn processors_of_machine() -> usize {
    const SELECTOR: u16 = 0x510;
    const DATA: u16 = 0x511;
    const PROCESSORS_NOW: u16 = 5;
    // SAFETY: the device only returns what is selected.
    let bytes = unsafe {
        port::write_word(SELECTOR, PROCESSORS_NOW);
        [port::read(DATA), port::read(DATA)]
    };
    usize::from(u16::from_le_bytes(bytes))
}
