//! The processors: what each has of its own.

use crate::apic;
use crate::async_faults::Shared;
use crate::interrupts::{self, Interrupt, KERNEL_CODE, KERNEL_DATA, TASK_CODE, TASK_DATA, WAKE};
use crate::tasks::{Context, Frame, INTERRUPTS_OFF, INTERRUPTS_ON};
use core::arch::asm;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*, fence};

/// Most processors that are used.
pub const MOST_PROCESSORS: usize = 16;
/// The stack on which the scheduler runs.
pub const STACK_BYTES: usize = 16 << 10;
/// No task: the processor idles.
pub const IDLE: usize = usize::MAX;

/// Words of the stack on which an interrupt enters; it pushes seven.
const ENTRY_WORDS: usize = 32;
/// In the second stack for interrupts, where its own frame ends and the next one begins.
const RESUME_TOP: usize = 8;
/// Up to two frames follow.
const RESUME_WORDS: usize = RESUME_TOP + 10;

/// The task-state segment: stacks for interrupts, and the map of I/O ports.
#[repr(C, packed(4))]
#[derive(Debug)]
pub struct TaskState {
    reserved: u32,
    /// For interrupts that do not name one of the stacks below.
    ring_stacks: [u64; 3],
    reserved2: u64,
    stacks: [u64; 7],
    reserved3: [u8; 10],
    map_at: u16,
    /// A bit is clear if ring 3 may use the port. Ports from 0x1000 on are not mapped.
    ports: [u8; 512],
    end: u8,
}

/// What a processor has of its own. Its GS points here.
#[repr(C, align(4096))]
#[derive(Debug)]
pub struct Processor {
    /// This structure's address.
    pub this: UnsafeCell<u64>,
    /// The address of `leave_frame`.
    pub leave: UnsafeCell<u64>,
    /// The registers of what runs are to be saved here.
    pub context: UnsafeCell<*mut Context>,
    /// For the entry of interrupts.
    pub scratch: UnsafeCell<u64>,
    /// CR2, as the entry of the page fault has read it.
    pub fault_address: UnsafeCell<u64>,
    /// What divides to enter ring 0 (src/interrupts.rs).
    pub zero: UnsafeCell<u64>,
    /// What the entries of interrupts leave to.
    leave_frame: UnsafeCell<Frame>,
    number: AtomicUsize,
    /// The number of the task that runs, or [`IDLE`].
    task: AtomicUsize,
    /// It idles, and has been interrupted since, or is about to be.
    woken: AtomicBool,
    /// The worker whose turn was last.
    pub last: AtomicUsize,
    /// When it was resumed.
    pub resumed: AtomicU64,
    /// Time in tasks, idle, and in the scheduler, in ticks.
    pub times: [AtomicU64; 3],
    /// Ticks for which a task did not make progress although it had the processor.
    pub stalled: AtomicU64,
    /// Ticks of accesses with an asynchronous page fault, without other tasks and the scheduler:
    /// what KVM does for the fault.
    pub in_kvm: AtomicU64,
    /// How often the scheduler changed to another task.
    pub switches: AtomicU64,
    idle: UnsafeCell<Context>,
    /// For KVM's asynchronous page faults.
    pub shared: Shared,
    /// It has started.
    pub online: AtomicBool,
    /// The task-state segment.
    pub task_state: UnsafeCell<TaskState>,
    resume_stack: UnsafeCell<Aligned<[u64; RESUME_WORDS]>>,
    entry_stack: UnsafeCell<Aligned<[u64; ENTRY_WORDS]>>,
    idle_stack: UnsafeCell<Aligned<[u64; ENTRY_WORDS]>>,
    /// The scheduler's stack, and the one on which the processor starts.
    pub stack: UnsafeCell<Aligned<[u8; STACK_BYTES]>>,
}

/// Aligned as the processor aligns a stack of the task-state segment.
#[repr(C, align(16))]
#[derive(Debug)]
pub struct Aligned<T>(T);

// SAFETY: what is not atomic is accessed by its own processor only, with interrupts off.
unsafe impl Sync for Processor {}

/// Every processor.
pub static PROCESSORS: [Processor; MOST_PROCESSORS] = [const { Processor::new() }; MOST_PROCESSORS];
static COUNT: AtomicUsize = AtomicUsize::new(1);

impl Processor {
    const fn new() -> Self {
        Self {
            this: UnsafeCell::new(0),
            leave: UnsafeCell::new(0),
            context: UnsafeCell::new(core::ptr::null_mut()),
            scratch: UnsafeCell::new(0),
            fault_address: UnsafeCell::new(0),
            zero: UnsafeCell::new(0),
            leave_frame: UnsafeCell::new(Context::new().frame),
            number: AtomicUsize::new(0),
            task: AtomicUsize::new(0),
            woken: AtomicBool::new(false),
            last: AtomicUsize::new(0),
            resumed: AtomicU64::new(0),
            times: [const { AtomicU64::new(0) }; 3],
            stalled: AtomicU64::new(0),
            in_kvm: AtomicU64::new(0),
            switches: AtomicU64::new(0),
            idle: UnsafeCell::new(Context::new()),
            shared: Shared::new(),
            online: AtomicBool::new(false),
            task_state: UnsafeCell::new(TaskState {
                reserved: 0,
                ring_stacks: [0; 3],
                reserved2: 0,
                stacks: [0; 7],
                reserved3: [0; 10],
                map_at: 0,
                ports: [0; 512],
                end: 0,
            }),
            resume_stack: UnsafeCell::new(Aligned([0; RESUME_WORDS])),
            entry_stack: UnsafeCell::new(Aligned([0; ENTRY_WORDS])),
            idle_stack: UnsafeCell::new(Aligned([0; ENTRY_WORDS])),
            stack: UnsafeCell::new(Aligned([0; STACK_BYTES])),
        }
    }

    /// Fills in the tables that interrupts need. The first thing that the processor does.
    pub fn initialize(&self, number: usize) {
        let end = |start: usize, bytes: usize| (start + bytes) as u64;
        let words =
            |at: *mut Aligned<[u64; ENTRY_WORDS]>| end(at.expose_provenance(), ENTRY_WORDS * 8);
        let frame = |instruction, code_segment, flags, stack, stack_segment| Frame {
            instruction,
            code_segment,
            flags,
            stack,
            stack_segment,
        };
        let this = (&raw const *self).expose_provenance() as u64;
        let stack = end(self.stack.get().expose_provenance(), STACK_BYTES);
        let leave = interrupts::leave_address();
        let idle = interrupts::idle_address();
        let resume = end(self.resume_stack.get().expose_provenance(), RESUME_TOP * 8);
        let entry = words(self.entry_stack.get());
        // SAFETY: this processor's own, and interrupts are off.
        unsafe {
            *self.this.get() = this;
            *self.leave.get() = self.leave_frame.get().expose_provenance() as u64;
            *self.context.get() = self.idle.get();
            *self.leave_frame.get() = frame(leave, TASK_CODE, INTERRUPTS_OFF, stack, TASK_DATA);
            let task_state = &mut *self.task_state.get();
            task_state.ring_stacks = [entry; 3];
            task_state.stacks = [entry, resume, 0, 0, 0, 0, 0];
            task_state.map_at = 104;
            task_state.end = 0xff;
            let idle_stack = words(self.idle_stack.get());
            let idle = frame(idle, KERNEL_CODE, INTERRUPTS_ON, idle_stack, KERNEL_DATA);
            (*self.idle.get()).begin(idle, 0);
        }
        self.number.store(number, Relaxed);
        self.task.store(IDLE, Relaxed);
    }

    /// Its number.
    pub fn number(&self) -> usize {
        self.number.load(Relaxed)
    }

    /// The number of the task that runs, or [`IDLE`].
    pub fn task(&self) -> usize {
        self.task.load(Relaxed)
    }

    /// Changes the task that runs.
    pub fn set_task(&self, task: usize) {
        self.task.store(task, Relaxed);
    }

    /// It is about to halt: from here on, [`wake`] interrupts it. It has to look once more for a
    /// task that could run.
    pub fn begin_to_idle(&self) {
        self.woken.store(false, Relaxed);
        self.task.store(IDLE, SeqCst);
        fence(SeqCst);
    }

    /// What runs while there is no task.
    pub fn idle(&self) -> *mut Context {
        self.idle.get()
    }

    /// The interrupt that has just entered on this processor.
    pub fn interrupt(&self) -> Interrupt {
        // SAFETY: the entry has stored seven words at the top; interrupts are off.
        let words = unsafe { &(*self.entry_stack.get()).0 };
        let [
            vector,
            error_code,
            instruction,
            code_segment,
            flags,
            stack,
            stack_segment,
        ] = *words.last_chunk::<7>().unwrap_or(&[0; 7]);
        Interrupt {
            vector: vector.to_le_bytes()[0],
            error_code,
            frame: Frame {
                instruction,
                code_segment,
                flags,
                stack,
                stack_segment,
            },
        }
    }

    /// Stores what the division by zero is to return to.
    pub fn set_frame(&self, frame: Frame) {
        // SAFETY: this processor's own, interrupts are off, and the frame fits behind the top.
        unsafe { self.frames().write(frame) };
    }

    /// The division by zero is to return to `code`, in ring 0, and that to ring 3; the caller fills
    /// in the last address and stack. Returns where the two frames are.
    pub fn msr_frames(&self, code: u64) -> *mut Frame {
        let frames = self.frames();
        let frame = |instruction, code_segment, stack, stack_segment| Frame {
            instruction,
            code_segment,
            flags: INTERRUPTS_OFF,
            stack,
            stack_segment,
        };
        // SAFETY: as above, and so does a second frame.
        unsafe {
            let second = frames.add(1);
            let stack = second.expose_provenance() as u64;
            frames.write(frame(code, KERNEL_CODE, stack, KERNEL_DATA));
            second.write(frame(0, TASK_CODE, 0, TASK_DATA));
        }
        frames
    }

    fn frames(&self) -> *mut Frame {
        let stack = self.resume_stack.get().cast::<u64>();
        // SAFETY: within the stack.
        unsafe { stack.add(RESUME_TOP).cast() }
    }
}

/// The processor that runs this.
pub fn current() -> &'static Processor {
    let this: usize;
    // SAFETY: GS points to this processor's structure, whose first word is its address. Tasks
    // stay on their processor.
    unsafe {
        asm!("mov {}, gs:[0]", out(reg) this, options(nostack, preserves_flags, readonly));
        &*core::ptr::with_exposed_provenance::<Processor>(this)
    }
}

/// Ends the halt of a processor, if it is halted. Another processor may take a while to notice,
/// but is not waited for.
pub fn wake(number: usize) {
    let Some(processor) = all().get(number) else {
        return;
    };
    let is_other = !core::ptr::eq(processor, current());
    if is_other && processor.task.load(SeqCst) == IDLE && !processor.woken.swap(true, SeqCst) {
        apic::interrupt_others(WAKE);
    }
}

/// The processors that run.
pub fn all() -> &'static [Processor] {
    &PROCESSORS[..COUNT.load(Relaxed)]
}

/// So many run now.
pub fn set_count(count: usize) {
    COUNT.store(count, Relaxed);
}
