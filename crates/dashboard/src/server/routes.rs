//! What is behind each path.

use std::net::IpAddr;
use std::sync::Arc;

use hikkoshi_account::Phase;
use hikkoshi_status::{End, Migration};
use http_body_util::BodyExt;
use hyper::body::Body;
use hyper::header::{ALLOW, HeaderValue};
use hyper::{Method, Request, StatusCode};
use serde::Serialize;
use tokio::sync::Semaphore;

use super::allowed_hosts::{AllowedHost, is_allowed};
use super::events::Events;
use super::fetch_metadata::is_of_another_site;
use super::large::Large;
use super::limits::Limits;
use super::respond::{Answer, JSON, answer, ok, refused};
use crate::follow::{Known, Migrations, View};
use crate::{asset, metrics};

const EVENTS: &str = "text/event-stream";

/// What answers requests.
#[derive(Debug)]
pub(super) struct Routes {
    pub(super) migrations: Migrations,
    pub(super) allowed_hosts: Vec<AllowedHost>,
    pub(super) limits: Limits,
    /// For large responses.
    pub(super) turns: Arc<Semaphore>,
}

impl Routes {
    /// The answer to a request that was sent to the address `local`.
    pub(super) fn answer<B: Body>(
        &self,
        request: &Request<B>,
        local: Option<IpAddr>,
    ) -> impl Future<Output = Answer> + Send + use<B> {
        // Only what is needed of the request is kept.
        let answer = self.small(request, local);
        let large = match &answer {
            None => Large::at_path(request.uri().path()),
            Some(_) => None,
        };
        let (migrations, turns) = (self.migrations.clone(), Arc::clone(&self.turns));
        async move {
            match (answer, large) {
                (Some(answer), _) => answer,
                (None, Some(large)) => large.answer(migrations, turns).await,
                (None, None) => refused(StatusCode::NOT_FOUND, "there is nothing with this path"),
            }
        }
    }

    /// An answer that is made at once. `None`: it is none of these.
    fn small<B: Body>(&self, request: &Request<B>, local: Option<IpAddr>) -> Option<Answer> {
        self.refusal(request, local).or_else(|| self.route(request))
    }

    /// Why a request is refused, if it is.
    fn refusal<B: Body>(&self, request: &Request<B>, local: Option<IpAddr>) -> Option<Answer> {
        let (uri, headers) = (request.uri(), request.headers());
        if !is_allowed(uri, headers, local, &self.allowed_hosts) {
            return Some(refused(
                StatusCode::FORBIDDEN,
                "the request names another host than this server (start `hikkoshi dashboard` with \
                 --allow-host NAME for each other name that the server has)",
            ));
        }
        if is_of_another_site(uri.path(), headers) {
            return Some(refused(
                StatusCode::FORBIDDEN,
                "a page of another site has made the request (open the dashboard's page itself)",
            ));
        }
        if ![Method::GET, Method::HEAD].contains(request.method()) {
            let mut answer = refused(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD");
            let methods = HeaderValue::from_static("GET, HEAD");
            answer.headers_mut().insert(ALLOW, methods);
            return Some(answer);
        }
        (!request.body().is_end_stream())
            .then(|| refused(StatusCode::BAD_REQUEST, "a request must not have a body"))
    }

    fn route<B>(&self, request: &Request<B>) -> Option<Answer> {
        Some(match request.uri().path() {
            "/events" if request.method() == Method::HEAD => ok(EVENTS, ""),
            "/events" => self.events(),
            "/metrics" => {
                let text = self.migrations.view(|view| metrics::metrics(&view));
                ok(metrics::CONTENT_TYPE, text)
            }
            "/api/migrations" => self.list(),
            "/api/evacuation" => self.evacuation(),
            "/api/hosts" => self.hosts(),
            path => {
                let asset = asset(path)?;
                ok(asset.content_type, asset.bytes)
            }
        })
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

    /// `null`: there is none.
    fn evacuation(&self) -> Answer {
        let look = |view: View<'_>| serde_json::to_vec(&view.evacuation).unwrap_or_default();
        ok(JSON, self.migrations.view(look))
    }

    fn hosts(&self) -> Answer {
        let look = |view: View<'_>| serde_json::to_vec(view.hosts).unwrap_or_default();
        ok(JSON, self.migrations.view(look))
    }

    fn list(&self) -> Answer {
        let list = self.migrations.view(|view| {
            let entries = view.entries.iter();
            let summaries = entries.filter_map(|(name, known)| Summary::new(name, known));
            serde_json::to_vec(&summaries.collect::<Vec<_>>()).unwrap_or_default()
        });
        ok(JSON, list)
    }
}

/// A migration in the list.
#[derive(Serialize)]
struct Summary<'a> {
    name: &'a str,
    /// `None`: it cannot be read.
    migration: Option<&'a Migration>,
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
        let (recording, lost) = (known.short(), known.lost());
        if recording.is_none() && lost.is_none() {
            return None;
        }
        let state = recording.and_then(|it| it.state.as_ref());
        Some(Self {
            name,
            migration: recording.map(|it| &it.migration),
            phase: state.map(|state| state.phase),
            missing_pages: state.and_then(|state| state.missing_pages),
            downtime_ms: state.and_then(|state| state.downtime_ms),
            end: recording.and_then(|it| it.end.as_ref()).map(ShortEnd::new),
            lost,
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
