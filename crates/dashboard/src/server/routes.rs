//! What is behind each path.

use std::net::IpAddr;

use hikkoshi_status::{End, Migration, Phase, Recording};
use http_body_util::BodyExt;
use hyper::body::Body;
use hyper::header::{ALLOW, CONTENT_SECURITY_POLICY, HeaderValue};
use hyper::{Method, Request, StatusCode};
use serde::Serialize;

use super::allowed_hosts::{AllowedHost, is_allowed};
use super::events::Events;
use super::limits::Limits;
use super::respond::{Answer, JSON, answer, ok, refused};
use crate::follow::{Known, Migrations};
use crate::{asset, metrics, report, report_policy};

const EVENTS: &str = "text/event-stream";

/// What answers requests.
#[derive(Debug)]
pub(super) struct Routes {
    pub(super) migrations: Migrations,
    pub(super) allowed_hosts: Vec<AllowedHost>,
    pub(super) limits: Limits,
}

impl Routes {
    /// The answer to a request that was sent to the address `local`.
    pub(super) fn answer<B: Body>(&self, request: &Request<B>, local: IpAddr) -> Answer {
        if !is_allowed(request.uri(), request.headers(), local, &self.allowed_hosts) {
            return refused(
                StatusCode::FORBIDDEN,
                "the request names another host than this server (start `hikkoshi dashboard` with \
                 --allow-host NAME for each other name that the server has)",
            );
        }
        if ![Method::GET, Method::HEAD].contains(request.method()) {
            let mut answer = refused(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD");
            let methods = HeaderValue::from_static("GET, HEAD");
            answer.headers_mut().insert(ALLOW, methods);
            return answer;
        }
        if !request.body().is_end_stream() {
            return refused(StatusCode::BAD_REQUEST, "a request must not have a body");
        }
        match request.uri().path() {
            "/events" if request.method() == Method::HEAD => ok(EVENTS, ""),
            "/events" => self.events(),
            "/metrics" => {
                let text = self.migrations.view(|view| metrics::metrics(&view));
                ok(metrics::CONTENT_TYPE, text)
            }
            "/api/migrations" => self.list(),
            path => self.named(path).unwrap_or_else(|| match asset(path) {
                Some(asset) => ok(asset.content_type, asset.bytes),
                None => refused(StatusCode::NOT_FOUND, "there is nothing with this path"),
            }),
        }
    }

    fn events(&self) -> Answer {
        match self.migrations.subscribe(self.limits.event_streams) {
            Some(subscription) => {
                let events = Events::new(subscription, self.limits.keep_alive);
                answer(StatusCode::OK, EVENTS, events.boxed())
            }
            None => refused(
                StatusCode::SERVICE_UNAVAILABLE,
                "too many pages are open (close some of them)",
            ),
        }
    }

    fn list(&self) -> Answer {
        let list = self.migrations.view(|view| {
            let entries = view.entries.iter();
            let summaries = entries.filter_map(|(name, known)| Summary::new(name, known));
            serde_json::to_vec(&summaries.collect::<Vec<_>>()).unwrap_or_default()
        });
        ok(JSON, list)
    }

    /// A path with the name of a migration. `None`: it is not such a path, or there is none.
    fn named(&self, path: &str) -> Option<Answer> {
        if let Some(name) = path.strip_prefix("/api/migrations/") {
            let json = self
                .migrations
                .view(|view| view.entries.get(name)?.json())?;
            return Some(ok(JSON, json));
        }
        let name = path.strip_prefix("/report/")?.strip_suffix(".html")?;
        let sides = self.migrations.view(|view| {
            let id = &view.entries.get(name)?.short()?.migration.id;
            let known = view.entries.values();
            let same = known.filter(|it| it.short().is_some_and(|it| it.migration.id == *id));
            Some(same.filter_map(Known::json).collect::<Vec<_>>())
        })?;
        // Outside of the lock: a recording may have some MiB.
        let recordings: Vec<Recording> = sides
            .iter()
            .filter_map(|json| serde_json::from_slice(json).ok())
            .collect();
        let mut answer = ok("text/html; charset=utf-8", report(&recordings));
        // It allows what is part of the report, and nothing else.
        let policy = HeaderValue::try_from(report_policy()).ok()?;
        answer.headers_mut().insert(CONTENT_SECURITY_POLICY, policy);
        Some(answer)
    }
}

/// A migration in the list.
#[derive(Serialize)]
struct Summary<'a> {
    name: &'a str,
    migration: &'a Migration,
    phase: Option<Phase>,
    missing_pages: Option<u64>,
    downtime_ms: Option<f64>,
    end: Option<ShortEnd<'a>>,
    lost: Option<&'a str>,
}

/// An end without the statistics.
#[derive(Serialize)]
struct ShortEnd<'a> {
    at_ms: u64,
    exit_status: u8,
    reason: &'a str,
    message: &'a str,
}

impl<'a> Summary<'a> {
    /// `None`: nothing was read yet.
    fn new(name: &'a str, known: &'a Known) -> Option<Self> {
        let recording = known.short()?;
        let state = recording.state.as_ref();
        Some(Self {
            name,
            migration: &recording.migration,
            phase: state.map(|state| state.phase),
            missing_pages: state.and_then(|state| state.missing_pages),
            downtime_ms: state.and_then(|state| state.downtime_ms),
            end: recording.end.as_ref().map(ShortEnd::new),
            lost: known.lost(),
        })
    }
}

impl<'a> ShortEnd<'a> {
    fn new(end: &'a End) -> Self {
        Self {
            at_ms: end.at_ms,
            exit_status: end.exit_status,
            reason: &end.reason,
            message: &end.message,
        }
    }
}
