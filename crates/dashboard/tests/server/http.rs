//! Requests and responses.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::thread;

use hikkoshi_account::Side;
use hikkoshi_dashboard::{
    BindError, CONTENT_SECURITY_POLICY, Listen, Options, Server, served_report_policy,
};
use hikkoshi_linux::CancelFlag;
use hikkoshi_status::StatusFolder;

use crate::client::Client;
use crate::engine::Engine;
use crate::examples::{migration, state};
use crate::running_server::{RunningServer, options};

#[test]
fn all_responses_have_the_headers_that_protect_the_page() {
    let server = RunningServer::start();
    for (path, status, content_type) in [
        ("/", 200, "text/html; charset=utf-8"),
        ("/style.css", 200, "text/css; charset=utf-8"),
        ("/metrics", 200, "text/plain; version=0.0.4; charset=utf-8"),
        ("/api/migrations", 200, "application/json"),
        ("/api/migrations/nothing", 404, "text/plain; charset=utf-8"),
        ("/report/nothing.html", 404, "text/plain; charset=utf-8"),
        ("/../etc/passwd", 404, "text/plain; charset=utf-8"),
        ("/nothing", 404, "text/plain; charset=utf-8"),
    ] {
        for method in ["GET", "HEAD"] {
            let response = Client::connect(server.address).request(method, path, "");
            assert_eq!(response.status, status, "{path}");
            assert_eq!(response.body.is_empty(), method == "HEAD", "{path}");
            for (name, value) in [
                ("content-type", content_type),
                ("content-security-policy", CONTENT_SECURITY_POLICY),
                ("x-content-type-options", "nosniff"),
                ("referrer-policy", "no-referrer"),
                ("cache-control", "no-store"),
                ("cross-origin-resource-policy", "same-origin"),
            ] {
                assert_eq!(response.header(name), Some(value), "{path} {name}");
            }
            assert_eq!(response.header("access-control-allow-origin"), None);
        }
    }
}

#[test]
fn only_get_and_head_are_allowed() {
    let server = RunningServer::start();
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"] {
        let response = Client::connect(server.address).request(method, "/", "");
        assert_eq!(response.status, 405, "{method}");
        assert_eq!(response.header("allow"), Some("GET, HEAD"));
    }
    let mut client = Client::connect(server.address);
    client.begin("GET", "/", "Content-Length: 4\r\n");
    assert_eq!(client.head().status, 400);
}

#[test]
fn requests_to_other_hosts_are_refused_for_all_paths() {
    let server = RunningServer::start();
    for path in [
        "/",
        "/events",
        "/metrics",
        "/api/migrations",
        "/style.css",
        "/nothing",
    ] {
        for host in ["evil.example", "127.0.0.1.evil.example", ""] {
            let host = format!("Host: {host}\r\n");
            let response = Client::connect(server.address).request("GET", path, &host);
            assert_eq!(response.status, 403, "{path} {host}");
            assert!(response.body.contains("--allow-host"), "{}", response.body);
        }
    }
    for host in ["monitor.example", "localhost:1", "127.0.0.1", "[::1]:443"] {
        let host = format!("Host: {host}\r\n");
        let response = Client::connect(server.address).request("GET", "/metrics", &host);
        assert_eq!(response.status, 200, "{host}");
    }
    // Without a host, which only HTTP 1.0 allows.
    let mut client = Client::connect(server.address);
    client.send(b"GET /metrics HTTP/1.0\r\n\r\n");
    assert_eq!(client.head().status, 403);
}

#[test]
fn a_report_has_its_own_policy_and_both_sides() {
    let server = RunningServer::start();
    let engines = [Side::Source, Side::Destination].map(|side| {
        let migration = migration(side, 1, 4);
        let engine = Engine::start(&server.folder, migration.clone());
        engine.state(state(&migration, 100));
        engine
    });
    for engine in &engines {
        let path = format!("/report/{}.html", engine.name);
        let response = server.get_until(&path, |response| response.status == 200);
        let policy = response.header("content-security-policy");
        assert_eq!(policy, Some(&*served_report_policy()));
        assert!(policy.unwrap().ends_with("; frame-ancestors 'none'"));
        assert_eq!(
            response.header("content-type"),
            Some("text/html; charset=utf-8")
        );
    }
}

#[test]
fn addresses_that_other_hosts_can_reach_need_a_permission() {
    for listen in ["0.0.0.0:0", "[::]:0", "[::ffff:192.0.2.1]:0", "192.0.2.1:0"] {
        let listen: Listen = listen.parse().unwrap();
        let refused = Server::bind(Options {
            listen,
            ..options()
        })
        .unwrap_err();
        assert!(matches!(refused, BindError::Remote { .. }), "{refused}");
        assert!(refused.to_string().contains("ssh -L"), "{refused}");
    }
    let allowed = Options {
        listen: Listen::Tcp(([0, 0, 0, 0], 0).into()),
        allow_remote: true,
        ..options()
    };
    Server::bind(allowed).unwrap();
}

#[test]
fn a_port_in_use_is_named() {
    let taken = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let listen = taken.local_addr().unwrap();
    let refused = Server::bind(Options {
        listen: Listen::Tcp(listen),
        ..options()
    })
    .unwrap_err();
    assert!(
        refused.to_string().contains(&listen.to_string()),
        "{refused}"
    );
}

#[test]
fn a_folder_that_others_may_write_to_is_not_read() {
    let server = RunningServer::start();
    server.folder.create().unwrap();
    let set = |mode| {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(server.folder.path(), mode).unwrap();
    };
    set(0o777);
    let readable = |value: u8| format!("\nhikkoshi_dashboard_status_folder_readable {value}\n");
    server.get_until("/metrics", |metrics| metrics.body.contains(&readable(0)));
    set(0o700);
    server.get_until("/metrics", |metrics| metrics.body.contains(&readable(1)));
}

#[test]
fn requests_of_pages_of_other_sites_are_refused() {
    let server = RunningServer::start();
    for path in [
        "/events",
        "/api/migrations",
        "/report/a.html",
        "/metrics",
        "/style.css",
    ] {
        let headers = "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Dest: image\r\n";
        let response = Client::connect(server.address).request("GET", path, headers);
        assert_eq!(response.status, 403, "{path}");
        assert!(response.body.contains("another site"), "{}", response.body);
    }
    let own = "Sec-Fetch-Site: same-origin\r\n";
    let response = Client::connect(server.address).request("GET", "/metrics", own);
    assert_eq!(response.status, 200);
}

/// Only the user can connect to it; `Host` is that of the tunnel.
#[test]
fn a_unix_socket_is_served() {
    let run = tempfile::tempdir().unwrap();
    let path = run.path().join("page.sock");
    let server = Server::bind(Options {
        listen: Listen::Unix(path.clone()),
        ..options()
    })
    .unwrap();
    assert_eq!(server.url(), format!("unix:{}", path.display()));
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let cancel = CancelFlag::new();
    let folder = StatusFolder::in_run_folder(run.path());
    thread::scope(|scope| {
        let served = scope.spawn(|| server.run(folder, None, &cancel));
        let get = |host: &str| {
            let mut stream = UnixStream::connect(&path).unwrap();
            let request = format!("GET /metrics HTTP/1.0\r\nHost: {host}\r\n\r\n");
            stream.write_all(request.as_bytes()).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            answer
        };
        let (answer, refused) = (get("localhost:8077"), get("example.com"));
        cancel.cancel();
        served.join().unwrap().unwrap();
        assert!(answer.starts_with("HTTP/1.0 200"), "{answer}");
        assert!(answer.contains("hikkoshi_build_info"), "{answer}");
        assert!(refused.starts_with("HTTP/1.0 403"), "{refused}");
    });
}
