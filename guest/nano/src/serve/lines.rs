//! The server of lines: answers a line with the guest's time and the line.

use super::{LINES, monotonic};
use crate::config;
use crate::net::{self, Broken, Connection};
use core::sync::atomic::Ordering::Relaxed;

/// The longest line; a longer one ends its connection.
const LONGEST: usize = 4096;

/// The entry of a connection's task.
pub extern "C" fn run(number: usize) -> ! {
    let connection = &net::LINES[number];
    loop {
        connection.accept();
        // A client that has gone is not an error.
        let _ = serve(connection);
        connection.finish();
    }
}

fn serve(connection: &'static Connection) -> Result<(), Broken> {
    let mut line = [0; LONGEST];
    let mut filled = 0;
    loop {
        let count = connection.read(&mut line[filled..]);
        let searched = filled;
        filled += count;
        let mut start = 0;
        while let Some(end) = line[start.max(searched)..filled]
            .iter()
            .position(|&byte| byte == b'\n')
        {
            let end = start.max(searched) + end + 1;
            answer(connection, &line[start..end])?;
            start = end;
        }
        connection.flush();
        line.copy_within(start..filled, 0);
        filled -= start;
        // A line that is too long leaves no room to read into.
        if count == 0 || filled == LONGEST {
            return Ok(());
        }
    }
}

fn answer(connection: &'static Connection, line: &[u8]) -> Result<(), Broken> {
    let time = monotonic(config::get().clock);
    connection.write_text(format_args!("{time} "))?;
    connection.write(line)?;
    LINES.fetch_add(1, Relaxed);
    Ok(())
}
