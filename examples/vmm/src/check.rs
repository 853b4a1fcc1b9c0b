//! What the guest reports about itself, before and after a move.

use crate::Result;
use crate::monitor::console::Console;
use crate::monitor::machine::Machine;

/// Intervals of the guest's reports in which it may not check a page, in a row: 5 s.
const MOST_IDLE: u32 = 200;

/// What must not have decreased after a move.
#[derive(Debug)]
pub(crate) struct GuestCheck {
    clock: u64,
    generation: u64,
}

impl GuestCheck {
    /// Waits until the guest works.
    pub(crate) fn before_move(machine: &Machine, console: &Console) -> Result<Self> {
        console.wait_for("ready: ")?;
        let report = console.wait_for("verify: ok ")?;
        Ok(Self {
            clock: read_clock(machine, console)?,
            generation: number(&report, "generation")?,
        })
    }

    /// Checks that the guest continues: it reports accesses to its memory, all of its pages are
    /// right, and its clock has not gone back. Returns the number of its pages.
    pub(crate) fn after_move(&self, machine: &Machine, console: &Console) -> Result<u64> {
        let clock = read_clock(machine, console)?;
        if clock <= self.clock {
            return Err(format!("the guest's clock went from {} to {clock}", self.clock).into());
        }
        // The first of these intervals may have begun before the move. In further ones, the
        // processors may wait for pages.
        console.wait_for("verify: ok ")?;
        let mut report = console.wait_for("verify: ok ")?;
        let mut intervals = 1;
        while number(&report, "checks")? == 0 {
            if intervals == MOST_IDLE {
                return Err(format!("the guest does not continue: {report}").into());
            }
            report = console.wait_for("verify: ok ")?;
            intervals += 1;
        }
        if number(&report, "generation")? < self.generation {
            return Err(format!("the guest has lost time: {report}").into());
        }
        number(&ask(machine, console, "sweep\n", "verdict: ok ")?, "pages")
    }
}

/// KVM's clock, as the guest reads it.
fn read_clock(machine: &Machine, console: &Console) -> Result<u64> {
    let clocks = ask(machine, console, "clocks\n", "clocks: ok ")?;
    match number(&clocks, "kvm_clock")? {
        1 => number(&clocks, "ns"),
        _ => Err(format!("the guest has no KVM clock: {clocks}").into()),
    }
}

/// The guest's answer to a command: what follows `start`.
fn ask(machine: &Machine, console: &Console, command: &str, start: &str) -> Result<String> {
    machine.type_line(command)?;
    console.wait_for(start)
}

/// The number in a word `name=number` of a line.
fn number(line: &str, name: &str) -> Result<u64> {
    let value = line.split_whitespace().find_map(|word| {
        let (key, value) = word.split_once('=')?;
        (key == name).then_some(value)
    });
    let value = value.and_then(|value| value.parse().ok());
    value.ok_or_else(|| format!("no number {name:?} in: {line}").into())
}
