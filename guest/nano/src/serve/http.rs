//! The server of files: `GET /NUMBER` by HTTP/1.1, over connections that are kept.

use super::SENT;
use super::files::{self, File};
use crate::net::{self, Broken, Connection};
use core::sync::atomic::Ordering::Relaxed;

/// The longest header of a request; a longer one ends its connection.
const LONGEST: usize = 1024;
/// Words that are copied at once: a page.
const WORDS: usize = 512;

/// The entry of a connection's task.
pub extern "C" fn run(number: usize) -> ! {
    let connection = &net::FILES[number];
    loop {
        connection.accept();
        // A client that has gone is not an error.
        let _ = serve(connection);
        connection.finish();
    }
}

fn serve(connection: &'static Connection) -> Result<(), Broken> {
    let mut request = [0; LONGEST];
    let mut filled = 0;
    loop {
        let end = request[..filled]
            .windows(4)
            .position(|four| four == b"\r\n\r\n");
        if let Some(end) = end {
            answer(connection, &request[..end])?;
            connection.flush();
            request.copy_within(end + 4..filled, 0);
            filled -= end + 4;
            continue;
        }
        let count = connection.read(&mut request[filled..]);
        filled += count;
        if count == 0 {
            return Ok(());
        }
    }
}

/// Answers a request that is complete. What follows its first line does not matter.
fn answer(connection: &'static Connection, header: &[u8]) -> Result<(), Broken> {
    match wanted(header).and_then(files::get) {
        Some(file) => {
            let bytes = file.bytes();
            connection.write_text(format_args!(
                "HTTP/1.1 200 OK\r\nContent-Length: {bytes}\r\n\r\n"
            ))?;
            send(connection, file)?;
            SENT.fetch_add(1, Relaxed);
            Ok(())
        }
        None => connection.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"),
    }
}

/// The number of the file that a request is for.
fn wanted(header: &[u8]) -> Option<usize> {
    let line = header.split(|&byte| byte == b'\r').next()?;
    let mut words = str::from_utf8(line).ok()?.split(' ');
    let (method, path) = (words.next()?, words.next()?);
    (method == "GET").then_some(())?;
    path.strip_prefix('/')?.parse().ok()
}

/// Sends a file. It is read into a buffer of this task, so that only this task waits for its pages.
fn send(connection: &'static Connection, file: File) -> Result<(), Broken> {
    let mut buffer = [0; WORDS * 8];
    let mut filled = 0;
    file.read(|word| {
        buffer[filled..filled + 8].copy_from_slice(&word.to_le_bytes());
        filled += 8;
        if filled == buffer.len() {
            filled = 0;
            connection.write(&buffer)?;
        }
        Ok(())
    })?;
    connection.write(&buffer[..filled])
}
