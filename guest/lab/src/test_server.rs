//! A small web server for the lab's own tests.

use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread::JoinHandle;

/// A server on a free port of the loopback address. It answers requests one after another, each
/// with a connection of its own, and ends on drop.
#[derive(Debug)]
pub(crate) struct TestServer {
    address: SocketAddr,
    thread: Option<JoinHandle<()>>,
}

/// What ends the server.
const END: &str = "/end-of-the-test-server";

impl TestServer {
    /// Starts a server. The function gets the path of each request; it returns the content type,
    /// after which other headers may follow, and the body, or nothing for status 404.
    pub(crate) fn start(
        mut answer: impl FnMut(&str) -> Option<(&'static str, String)> + Send + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // A browser opens connections in advance, and closes them again without a request.
                let Some(path) = read_request(&stream) else {
                    continue;
                };
                if path == END {
                    return;
                }
                let (status, (kind, body)) = match answer(&path) {
                    Some(found) => ("200 OK", found),
                    None => ("404 Not Found", ("text/plain", String::new())),
                };
                let length = body.len();
                let head = format!(
                    "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\
                     Connection: close\r\n\r\n"
                );
                let _ = (&stream).write_all((head + &body).as_bytes());
                let _ = stream.shutdown(Shutdown::Write);
            }
        });
        Self {
            address,
            thread: Some(thread),
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

/// The path, after the whole head was read.
fn read_request(stream: &TcpStream) -> Option<String> {
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next()?.ok()?;
    lines
        .any(|line| line.is_ok_and(|line| line.is_empty()))
        .then_some(())?;
    first.split(' ').nth(1).map(str::to_owned)
}

impl Drop for TestServer {
    fn drop(&mut self) {
        if let Ok(mut stream) = TcpStream::connect(self.address) {
            let _ = stream.write_all(format!("GET {END} HTTP/1.1\r\n\r\n").as_bytes());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
