//! A client that sees each byte of the server.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// No test waits this long, unless it fails.
const LONG: Duration = Duration::from_secs(60);

pub(crate) struct Client {
    pub(crate) stream: BufReader<TcpStream>,
}

#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Response {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.headers.iter().filter(|(known, _)| known == name);
        let value = values.next().map(|(_, value)| value.as_str());
        assert!(values.next().is_none(), "{name} is there once");
        value
    }
}

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        Self {
            stream: BufReader::new(stream),
        }
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.get_mut().write_all(bytes).unwrap();
    }

    /// Sends a request with HTTP 1.0, so that the body is everything until the end.
    pub(crate) fn begin(&mut self, method: &str, path: &str, headers: &str) {
        let host = if headers.contains("Host:") {
            ""
        } else {
            "Host: localhost\r\n"
        };
        self.send(format!("{method} {path} HTTP/1.0\r\n{host}{headers}\r\n").as_bytes());
    }

    pub(crate) fn request(mut self, method: &str, path: &str, headers: &str) -> Response {
        self.begin(method, path, headers);
        let mut response = self.head();
        self.stream.read_to_string(&mut response.body).unwrap();
        response
    }

    /// The head of a response.
    pub(crate) fn head(&mut self) -> Response {
        let status = self.line();
        let headers = std::iter::repeat_with(|| self.line()).take_while(|line| !line.is_empty());
        let parsed = headers.map(|line| {
            let (name, value) = line.split_once(": ").unwrap();
            (name.to_ascii_lowercase(), value.to_owned())
        });
        let headers = parsed.collect();
        Response {
            status: status.split(' ').nth(1).unwrap().parse().unwrap(),
            headers,
            body: String::new(),
        }
    }

    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        assert_ne!(
            self.stream.read_line(&mut line).unwrap(),
            0,
            "the server has closed"
        );
        line.trim_end_matches(['\r', '\n']).to_owned()
    }

    /// What is left until the server closes the connection. `None`: it has reset the connection.
    pub(crate) fn rest(&mut self) -> Option<Vec<u8>> {
        let mut rest = Vec::new();
        self.stream.read_to_end(&mut rest).ok().map(|_| rest)
    }

    /// Opens the events.
    pub(crate) fn events(address: SocketAddr) -> Self {
        let mut client = Self::connect(address);
        client.begin("GET", "/events", "");
        let head = client.head();
        assert_eq!(head.status, 200);
        assert_eq!(head.header("content-type"), Some("text/event-stream"));
        client
    }

    /// The next event: its kind and its data. That all was sent is skipped.
    pub(crate) fn event(&mut self) -> (String, Value) {
        loop {
            let event = self.any_event();
            if event.0 != "all-sent" {
                return event;
            }
        }
    }

    /// The next event. Comments are skipped.
    pub(crate) fn any_event(&mut self) -> (String, Value) {
        loop {
            let line = self.line();
            if let Some(kind) = line.strip_prefix("event: ") {
                let data = self.line();
                let data = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
                assert_eq!(self.line(), "");
                return (kind.to_owned(), data);
            }
            assert!(line.is_empty() || line.starts_with(':'), "{line}");
        }
    }

    /// The next record, with the name of its entry.
    pub(crate) fn record(&mut self) -> (String, hikkoshi_status::StatusRecord) {
        let (kind, mut data) = self.event();
        assert_eq!(kind, "status", "{data}");
        let name = data["name"].as_str().unwrap().to_owned();
        (name, serde_json::from_value(data["record"].take()).unwrap())
    }
}
