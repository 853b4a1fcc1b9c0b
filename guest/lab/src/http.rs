//! A request by HTTP, for tests.

use crate::LabError;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// How long a server may take. Only ends a test that hangs.
const TIMEOUT: Duration = Duration::from_secs(120);
/// The size of an answer, bytes.
const LIMIT: u64 = 64 << 20;

/// The body that a server answers, if the status is 200. `path` may have a query. The request is
/// HTTP/1.0, so the body ends with the connection, and no server divides it into chunks.
///
/// # Errors
/// When the server cannot be reached, answers another status, or what it answers is not text.
pub fn http_get(address: SocketAddr, path: &str) -> Result<String, LabError> {
    let fail = |reason: String| LabError::Http {
        address,
        path: path.to_owned(),
        reason,
    };
    let answer = exchange(address, path).map_err(|error| fail(error.to_string()))?;
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.split(' ').nth(1) == Some("200") => Ok(body.to_owned()),
        _ => Err(fail(format!("it answers {answer:.300?}"))),
    }
}

fn exchange(address: SocketAddr, path: &str) -> std::io::Result<String> {
    let mut server = TcpStream::connect_timeout(&address, TIMEOUT)?;
    server.set_read_timeout(Some(TIMEOUT))?;
    server.set_write_timeout(Some(TIMEOUT))?;
    let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    server.write_all(request.as_bytes())?;
    let mut answer = String::new();
    server.take(LIMIT).read_to_string(&mut answer)?;
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_server::TestServer;

    #[test]
    fn a_body_is_returned_and_another_status_is_an_error() {
        let server = TestServer::start(|path| {
            (path == "/metrics?name=x").then(|| ("text/plain", "one\r\n\r\ntwo".to_owned()))
        });
        let body = http_get(server.address(), "/metrics?name=x").unwrap();
        assert_eq!(body, "one\r\n\r\ntwo");
        let error = http_get(server.address(), "/").unwrap_err().to_string();
        assert!(error.contains("404 Not Found"), "{error}");
        let address = server.address();
        drop(server);
        let error = http_get(address, "/").unwrap_err().to_string();
        assert!(error.contains("refused"), "{error}");
    }
}
