//! The guest's console: output lines and commands.

use crate::worker::Event;
use std::io::{self, BufRead, Write};
use std::sync::mpsc::Sender;

/// Prints a whole line.
pub(crate) fn print_line(line: &str) {
    // One write, so that no other output is mixed with it. Errors of the console are ignored.
    let mut out = io::stdout().lock();
    let _ = out.write_all(format!("{line}\n").as_bytes());
    let _ = out.flush();
}

/// Starts a thread that sends lines of the console as events.
pub(crate) fn read_lines(sender: Sender<Event>) -> io::Result<()> {
    std::thread::Builder::new()
        .name("console".to_owned())
        .spawn(move || {
            for line in io::stdin().lock().lines() {
                // A line that is not UTF-8 cannot be a command.
                let Ok(line) = line else { continue };
                if sender.send(Event::Line(line)).is_err() {
                    return;
                }
            }
        })?;
    Ok(())
}
