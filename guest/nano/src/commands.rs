//! Commands on the serial line.

use crate::serial;

/// A command.
#[derive(Clone, Copy, Debug)]
pub enum Command {
    /// Check every page.
    Sweep,
    /// Check every page, then end.
    Stop,
    /// Say the time.
    Clocks,
    /// Start the scan.
    Scan,
    /// Say what has been counted since the start.
    Totals,
    /// Say it of each task.
    Tasks,
    /// Say when each noted fault began and ended.
    Faults,
    /// Anything else.
    Unknown,
}

/// The line that is being received.
#[derive(Debug, Default)]
pub struct Commands {
    line: [u8; 16],
    length: usize,
}

impl Commands {
    /// Takes what has arrived, up to the end of a line.
    pub fn poll(&mut self) -> Option<Command> {
        while let Some(byte) = serial::read() {
            if byte != b'\n' {
                if let Some(slot) = self.line.get_mut(self.length) {
                    *slot = byte;
                }
                self.length += 1;
                continue;
            }
            let line = self.line.get(..self.length).unwrap_or(b"too long");
            self.length = 0;
            match line.trim_ascii() {
                b"" => {}
                b"sweep" => return Some(Command::Sweep),
                b"clocks" => return Some(Command::Clocks),
                b"scan" => return Some(Command::Scan),
                b"totals" => return Some(Command::Totals),
                b"tasks" => return Some(Command::Tasks),
                b"faults" => return Some(Command::Faults),
                b"stop" => return Some(Command::Stop),
                _ => return Some(Command::Unknown),
            }
        }
        None
    }
}
