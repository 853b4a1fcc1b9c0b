//! The local APIC: the timer that preempts tasks, and the messages that start processors.
//!
//! It is used through its page of registers (xAPIC), which ring 3 can access: the registers of
//! x2APIC are model-specific ones, so each access would have to enter ring 0.

use crate::clock::{Clock, ticks};
use crate::interrupts::{SPURIOUS, TIMER};
use core::ptr::{with_exposed_provenance, with_exposed_provenance_mut};

const PAGE: usize = 0xfee0_0000;

const TASK_PRIORITY: usize = 0x80;
const END_OF_INTERRUPT: usize = 0xb0;
const SPURIOUS_VECTOR: usize = 0xf0;
const COMMAND_LOW: usize = 0x300;
const COMMAND_HIGH: usize = 0x310;
const TIMER_VECTOR: usize = 0x320;
const LINE_0: usize = 0x350;
const LINE_1: usize = 0x360;
const INITIAL_COUNT: usize = 0x380;
const CURRENT_COUNT: usize = 0x390;
const DIVIDER: usize = 0x3e0;

/// In the spurious vector's register: the APIC is on.
const ENABLED: u32 = 1 << 8;
const MASKED: u32 = 1 << 16;
const PERIODIC: u32 = 1 << 17;
const DIVIDE_BY_16: u32 = 3;
/// The last command has not been delivered yet.
const PENDING: u32 = 1 << 12;
/// INIT, level asserted.
const INIT: u32 = 0x4500;
/// An interrupt with the vector in the lowest byte, for every other processor.
const ALL_OTHERS: u32 = 0x000c_4000;
/// Start-up, with the number of the page where the processor is to start.
const STARTUP: u32 = 0x4600;

/// The two 8259 interrupt controllers' masks.
const PIC_MASKS: [u16; 2] = [0x21, 0xa1];

fn read(register: usize) -> u32 {
    // SAFETY: the APIC's page is mapped, and reading these registers has no effect.
    unsafe { with_exposed_provenance::<u32>(PAGE + register).read_volatile() }
}

fn write(register: usize, value: u32) {
    // SAFETY: the APIC's page is mapped; its registers affect interrupts only, whose handlers are
    // installed before anything is written here.
    unsafe { with_exposed_provenance_mut::<u32>(PAGE + register).write_volatile(value) };
}

/// Masks the machine's other interrupts.
pub fn mask_other_interrupts() {
    for mask in PIC_MASKS {
        // SAFETY: no driver of this guest uses these interrupts.
        unsafe { crate::port::write(mask, 0xff) };
    }
}

/// Enables this processor's APIC.
pub fn enable() {
    write(LINE_0, MASKED);
    write(LINE_1, MASKED);
    write(TASK_PRIORITY, 0);
    write(SPURIOUS_VECTOR, ENABLED | u32::from(SPURIOUS));
}

/// Acknowledges an interrupt.
pub fn end_of_interrupt() {
    write(END_OF_INTERRUPT, 0);
}

/// The timer's count that lasts `us` microseconds, measured for 10 ms.
pub fn timer_count(clock: Clock, us: u64) -> u32 {
    write(DIVIDER, DIVIDE_BY_16);
    write(TIMER_VECTOR, MASKED);
    write(INITIAL_COUNT, u32::MAX);
    let (first, begun) = (read(CURRENT_COUNT), ticks());
    let end = begun + clock.ticks_of_us(10_000);
    while ticks() < end {
        core::hint::spin_loop();
    }
    let (last, ended) = (read(CURRENT_COUNT), ticks());
    write(INITIAL_COUNT, 0);
    let counted = u64::from(first - last);
    let count = counted * clock.ticks_of_us(us) / (ended - begun).max(1);
    u32::try_from(count).unwrap_or(u32::MAX).max(1)
}

/// Lets this processor's timer interrupt periodically.
pub fn start_timer(count: u32) {
    write(DIVIDER, DIVIDE_BY_16);
    write(TIMER_VECTOR, PERIODIC | u32::from(TIMER));
    write(INITIAL_COUNT, count);
}

/// Resets the processor with this APIC's number.
pub fn send_init(processor: u32) {
    command(processor, INIT);
}

/// Starts the processor, which has been reset, at the start of a page below 1 MiB.
pub fn send_startup(processor: u32, page: u32) {
    command(processor, STARTUP | page);
}

/// Interrupts every other processor, by one write: a task may be interrupted between two.
pub fn interrupt_others(vector: u8) {
    write(COMMAND_LOW, ALL_OTHERS | u32::from(vector));
}

fn command(processor: u32, command: u32) {
    write(COMMAND_HIGH, processor << 24);
    write(COMMAND_LOW, command);
    while read(COMMAND_LOW) & PENDING != 0 {
        core::hint::spin_loop();
    }
}
