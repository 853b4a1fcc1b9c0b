//! Responses that take long to make: whole recordings, and reports.
//!
//! A recording may have some MiB. They are made on threads of their own, a few at a time, so that
//! the thread of the event streams is never delayed by them, and memory is bounded.

use std::sync::Arc;

use hikkoshi_status::Recording;
use hyper::StatusCode;
use hyper::header::{CONTENT_SECURITY_POLICY, HeaderValue};
use tokio::sync::Semaphore;

use super::respond::{Answer, JSON, ok, refused};
use crate::follow::{Migrations, Whole};
use crate::{report, served_report_policy};

/// Responses that are made at once. Further ones wait; the number of connections bounds these.
pub(super) const AT_ONCE: usize = 2;

/// A response of this kind.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Large {
    /// The recording of an entry.
    Recording(String),
    /// The report of the migration of an entry.
    Report(String),
}

impl Large {
    /// The response for a path. `None`: it is not such a path.
    pub(super) fn at_path(path: &str) -> Option<Self> {
        if let Some(name) = path.strip_prefix("/api/migrations/") {
            return Some(Self::Recording(name.to_owned()));
        }
        let name = path.strip_prefix("/report/")?.strip_suffix(".html")?;
        Some(Self::Report(name.to_owned()))
    }

    /// Makes the response, when it is its turn.
    pub(super) async fn answer(self, migrations: Migrations, turns: Arc<Semaphore>) -> Answer {
        let failed = || refused(StatusCode::INTERNAL_SERVER_ERROR, "making it has failed");
        // The semaphore is never closed.
        let Ok(turn) = turns.acquire_owned().await else {
            return failed();
        };
        let made = tokio::task::spawn_blocking(move || {
            let made = self.make(&migrations);
            drop(turn);
            made
        });
        match made.await {
            Ok(Some(answer)) => answer,
            Ok(None) => refused(StatusCode::NOT_FOUND, "there is nothing with this path"),
            // A panic, which was reported.
            Err(_) => failed(),
        }
    }

    fn make(self, migrations: &Migrations) -> Option<Answer> {
        match self {
            Self::Recording(name) => Some(ok(JSON, migrations.whole(&name)?.into_json())),
            Self::Report(name) => {
                let sides = migrations.whole_migration(&name)?;
                let recordings: Vec<Recording> = sides
                    .into_iter()
                    .filter_map(Whole::into_recording)
                    .collect();
                let mut answer = ok("text/html; charset=utf-8", report(&recordings));
                // It allows what is part of the report, and nothing else.
                let policy = HeaderValue::try_from(served_report_policy()).ok()?;
                answer.headers_mut().insert(CONTENT_SECURITY_POLICY, policy);
                Some(answer)
            }
        }
    }
}
