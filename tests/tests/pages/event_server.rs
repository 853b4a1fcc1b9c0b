//! A small server for the live page: its files, and events that a test sends.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use hikkoshi_dashboard::{CONTENT_SECURITY_POLICY, asset};
use hikkoshi_status::{Recording, StatusRecord};
use serde_json::{Value, json};

/// The event that follows the first recordings.
pub(crate) const ALL_SENT: &str = "event: all-sent\ndata: {}\n\n";

/// Serves the live page to any number of browsers.
#[derive(Debug)]
pub(crate) struct EventServer {
    /// The address of the page.
    pub(crate) url: String,
    shared: Arc<Mutex<Shared>>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Connections that wait for events.
    streams: Vec<TcpStream>,
    /// What a new connection gets first.
    first: Vec<String>,
    /// Whether new connections for events are refused.
    refuses: bool,
    /// Whether new connections are not told that everything was sent.
    has_more: bool,
    /// Other files: a path, and HTML with its policy.
    pages: Vec<(String, String, String)>,
}

impl EventServer {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let shared = Arc::new(Mutex::new(Shared::default()));
        let server = Self {
            url,
            shared: Arc::clone(&shared),
        };
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&shared);
                thread::spawn(move || answer(stream, &shared));
            }
        });
        server
    }

    /// What each new connection gets first.
    pub(crate) fn begin_with(&self, events: Vec<String>) {
        self.lock().first = events;
    }

    /// Whether new connections get more first, and then [`ALL_SENT`], which the test sends.
    pub(crate) fn has_more(&self, has_more: bool) {
        self.lock().has_more = has_more;
    }

    /// Serves another page.
    pub(crate) fn add_page(&self, path: &str, html: String, policy: String) {
        self.lock().pages.push((path.to_owned(), html, policy));
    }

    /// Sends an event to all connections.
    pub(crate) fn send(&self, event: &str) {
        let send = |stream: &mut TcpStream| stream.write_all(event.as_bytes()).is_ok();
        self.lock().streams.retain_mut(send);
    }

    /// Closes all connections for events, and refuses new ones, or not.
    pub(crate) fn refuse(&self, refuses: bool) {
        let mut shared = self.lock();
        shared.refuses = refuses;
        if refuses {
            for stream in shared.streams.drain(..) {
                let _ = stream.shutdown(std::net::Shutdown::Both);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        lock(&self.shared)
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An event with a record of a migration.
pub(crate) fn status(name: &str, record: &StatusRecord) -> String {
    event("status", &json!({ "name": name, "record": record }))
}

/// An event with a recording without samples and frames.
pub(crate) fn short(name: &str, recording: &Recording) -> String {
    let mut recording = recording.clone();
    recording.samples.clear();
    recording.frames.clear();
    let record = json!({ "recording": recording });
    event(
        "status",
        &json!({ "name": name, "record": record, "short": true }),
    )
}

/// An event of the stream.
pub(crate) fn event(kind: &str, data: &Value) -> String {
    format!("event: {kind}\ndata: {data}\n\n")
}

fn answer(mut stream: TcpStream, shared: &Mutex<Shared>) {
    let Ok(copy) = stream.try_clone() else {
        return;
    };
    let mut lines = BufReader::new(copy).lines();
    let Some(Ok(request)) = lines.next() else {
        return;
    };
    while lines
        .next()
        .is_some_and(|line| line.is_ok_and(|line| !line.is_empty()))
    {}
    let path = request.split(' ').nth(1).unwrap_or("/");
    if path == "/events" {
        let mut shared = lock(shared);
        if shared.refuses {
            return;
        }
        let mut head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\
                        Cache-Control: no-store\r\n\r\nretry: 100\n\n"
            .to_owned();
        head.extend(shared.first.iter().map(String::as_str));
        if !shared.has_more {
            head.push_str(ALL_SENT);
        }
        if stream.write_all(head.as_bytes()).is_ok() {
            shared.streams.push(stream);
        }
        return;
    }
    let page = lock(shared)
        .pages
        .iter()
        .find(|(name, ..)| name == path)
        .cloned();
    let (status, kind, policy, bytes) = match (page, asset(path)) {
        (Some((_, html, policy)), _) => ("200 OK", "text/html", policy, html.into_bytes()),
        (None, Some(asset)) => (
            "200 OK",
            asset.content_type,
            CONTENT_SECURITY_POLICY.to_owned(),
            asset.bytes.to_vec(),
        ),
        (None, None) => ("404 Not Found", "text/plain", String::new(), Vec::new()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\
         Content-Security-Policy: {policy}\r\nConnection: close\r\n\r\n",
        bytes.len()
    );
    let _ = stream
        .write_all(head.as_bytes())
        .and_then(|()| stream.write_all(&bytes));
}
