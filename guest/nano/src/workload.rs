//! The main loop: accesses at their rate, reports at their interval, commands when they arrive. The
//! lines are those of the Linux test guest (guest/README.md).

use crate::clock::{Clock, ticks};
use crate::commands::{Command, Commands};
use crate::kvm_clock;
use crate::latency::{Latency, Thousandths};
use crate::memory;
use crate::options::Options;
use crate::say;
use crate::start_info;
use crate::verify::Verify;
use core::fmt;

/// Runs the workload until the command `stop`.
pub fn run() -> Result<(), &'static str> {
    let booted = ticks();
    let start = start_info::read().ok_or("QEMU has passed no PVH start information")?;
    let options = match Options::parse(start.command_line) {
        Ok(options) => options,
        Err((name, value)) => crate::fail(format_args!(
            "option hk.{name}={value} on the kernel command line: not for this guest"
        )),
    };
    let clock = Clock::calibrate().ok_or("ACPI's timer does not run")?;
    // SAFETY: called once.
    let memory = unsafe { memory::take(options.mib * 256, start.memory_end) };
    let verify = Verify::new(memory.ok_or("hk.mib is more than the memory")?, &options);
    let uptime = clock.nanoseconds(ticks() - booted) / 10_000_000;
    say!(
        "ready: workload=verify serve=0 pages={} threads=1 cpus=1 tick_mhz={} uptime={}.{:02}",
        verify.pages(),
        clock.hz / 1_000_000,
        uptime / 100,
        uptime % 100,
    );
    Run::new(clock, options, verify).until_stopped();
    Ok(())
}

struct Run {
    clock: Clock,
    options: Options,
    verify: Verify,
    latency: Latency,
    started: u64,
    reported: u64,
}

impl Run {
    fn new(clock: Clock, options: Options, verify: Verify) -> Self {
        let now = ticks();
        Self {
            latency: Latency::new(clock, options.slow_us),
            clock,
            options,
            verify,
            started: now,
            reported: now,
        }
    }

    fn until_stopped(&mut self) {
        let poll_interval = self.clock.ticks_of_us(1000);
        let report_interval = self.clock.ticks_of_us(self.options.every_ms * 1000);
        let access_interval = self.clock.hz.checked_div(self.options.rate).unwrap_or(0);
        let (mut next_poll, mut next_access) = (self.started, self.started);
        let mut commands = Commands::default();
        loop {
            let now = ticks();
            // Each reading of the port costs an exit to the hypervisor.
            if now >= next_poll {
                next_poll = now + poll_interval;
                match commands.poll() {
                    None => {}
                    Some(Command::Sweep) => self.sweep(),
                    Some(Command::Stop) => {
                        self.sweep();
                        say!("stopped:");
                        return;
                    }
                    Some(Command::Clocks) => self.clocks(),
                    Some(Command::Unknown) => say!("unknown: known are sweep, clocks and stop"),
                }
            }
            if now - self.reported >= report_interval {
                self.report(now);
            }
            if now < next_access {
                core::hint::spin_loop();
                continue;
            }
            // After a long delay, do not catch up in a burst.
            if now - next_access > self.clock.hz / 10 {
                next_access = now;
            }
            next_access += access_interval;
            let took = self.verify.access();
            self.latency.record(took);
        }
    }

    fn sweep(&mut self) {
        self.verify.sweep();
        say!(
            "verdict: {} pages={} bad={} disk_pages=0",
            self.word(),
            self.verify.pages(),
            self.verify.bad,
        );
    }

    /// Prints one time by the counter and by KVM's clock; without that, by the counter alone.
    fn clocks(&self) {
        let kvm = kvm_clock::read();
        let (ticks, ns) = kvm.unwrap_or_else(|| {
            let now = ticks();
            (now, self.clock.nanoseconds(now))
        });
        let kvm_clock = u8::from(kvm.is_some());
        say!("clocks: ok ticks={ticks} ns={ns} kvm_clock={kvm_clock}");
    }

    /// Prints the report of an interval.
    fn report(&mut self, now: u64) {
        let latency = &self.latency;
        say!(
            "verify: {} t={} span_ms={} pages={} checks={} generation={} bad={} {latency}",
            self.word(),
            Thousandths(self.clock.nanoseconds(now - self.started) / 1_000_000),
            self.clock.nanoseconds(now - self.reported) / 1_000_000,
            self.verify.pages(),
            latency.accesses,
            self.verify.newest,
            self.verify.bad,
        );
        self.latency = Latency::new(self.clock, self.options.slow_us);
        self.reported = now;
    }

    fn word(&self) -> impl fmt::Display + use<> {
        if self.verify.bad == 0 { "ok" } else { "BAD" }
    }
}
