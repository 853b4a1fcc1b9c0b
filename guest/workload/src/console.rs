//! The guest's console: lines out, commands in.

use crate::worker::Event;
use std::io::{self, BufRead, Write};
use std::sync::mpsc::Sender;

/// Prints a line, whole.
pub(crate) fn print_line(line: &str) {
    // One write, so that no other writer comes in between. A console that is gone is nobody's loss.
    let mut out = io::stdout().lock();
    let _ = out.write_all(format!("{line}\n").as_bytes());
    let _ = out.flush();
}

/// Lines of the console as events.
pub(crate) fn read_lines(sender: Sender<Event>) -> io::Result<()> {
    std::thread::Builder::new()
        .name("console".to_owned())
        .spawn(move || {
            for line in io::stdin().lock().lines() {
                // A byte that is no text cannot be a command.
                let Ok(line) = line else { continue };
                if sender.send(Event::Line(line)).is_err() {
                    return;
                }
            }
        })?;
    Ok(())
}
