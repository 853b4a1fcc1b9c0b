//! A block job that copies a disk, as QEMU lists it.

use std::fmt;

use serde_json::{Value, json};

use super::is_ours;
use crate::qmp::{Client, QmpError};

/// A job of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CopyJob {
    pub(super) id: String,
    pub(super) status: String,
    pub(super) done: u64,
    pub(super) total: u64,
    /// Why it copies nothing any more: it has ended, or an error has paused it.
    pub(super) failure: Option<Failure>,
}

/// Why a job copies nothing any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The destination's file system is full.
    NoSpace,
    /// A request has failed. QEMU does not list the reason.
    Request(Option<Operation>),
    /// The job has ended with this message.
    Message(String),
    /// The job has ended without a message.
    Ended,
}

/// What has failed, by QEMU's events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Reading the source's disk.
    Read,
    /// Writing, clearing or flushing the destination's.
    Write,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoSpace => "No space left on device",
            Self::Request(Some(Operation::Read)) => "reading the source's disk has failed",
            Self::Request(Some(Operation::Write)) => {
                "writing to the destination's disk has failed, or its connection"
            }
            Self::Request(None) => {
                "writing to the destination's disk, or reading the source's, has failed"
            }
            Self::Message(message) => message,
            Self::Ended => "the block job has ended",
        })
    }
}

impl Failure {
    /// What to do about it: the end of a sentence.
    pub(super) fn advice(&self) -> &'static str {
        match self {
            Self::NoSpace => {
                "; free space for the disk at the destination, or give it a larger file system, \
                 and move the guest again"
            }
            Self::Request(Some(Operation::Read)) => {
                "; see the messages of the kernel and of QEMU at the source"
            }
            _ => "; see also the messages of 'hikkoshi receive' and of QEMU at the destination",
        }
    }
}

impl CopyJob {
    fn from_row(row: &Value) -> Option<Self> {
        let text = |key| row.get(key).and_then(Value::as_str);
        let number = |key| row.get(key).and_then(Value::as_u64);
        let message = text("error").map(|message| Failure::Message(message.to_owned()));
        let paused = || match text("io-status") {
            None | Some("ok") => None,
            Some("nospace") => Some(Failure::NoSpace),
            Some(_) => Some(Failure::Request(None)),
        };
        Some(Self {
            id: text("device").filter(|id| is_ours(id))?.to_owned(),
            status: text("status")?.to_owned(),
            done: number("offset")?,
            total: number("len")?,
            failure: message.or_else(paused),
        })
    }

    /// Whether everything was copied: QEMU reports such a job as `standby` while it drains the
    /// disk. **A job that an error has paused** is `standby`, too.
    pub(super) fn is_ready(&self) -> bool {
        self.failure.is_none() && matches!(self.status.as_str(), "ready" | "standby")
    }

    pub(super) fn has_ended(&self) -> bool {
        matches!(self.status.as_str(), "concluded" | "null")
    }
}

/// The jobs of ours. (`query-jobs` does not have the errors that have paused them.)
pub(super) fn list(client: &mut Client) -> Result<Vec<CopyJob>, QmpError> {
    let jobs = client.execute("query-block-jobs", json!({}))?;
    let rows = jobs
        .as_array()
        .ok_or_else(|| QmpError::unexpected("query-block-jobs", "not a list"))?;
    let mut jobs: Vec<_> = rows.iter().filter_map(CopyJob::from_row).collect();
    for job in &mut jobs {
        if job.failure == Some(Failure::Request(None)) {
            job.failure = Some(Failure::Request(failed_operation(client, &job.id)));
        }
    }
    Ok(jobs)
}

/// What has failed first of this job's requests, if the events that have come still say so.
fn failed_operation(client: &Client, id: &str) -> Option<Operation> {
    client.find_event(|event| {
        let text = |key| event.data.get(key).and_then(Value::as_str);
        if event.name != "BLOCK_JOB_ERROR" || text("device") != Some(id) {
            return None;
        }
        match text("operation") {
            Some("read") => Some(Operation::Read),
            Some("write") => Some(Operation::Write),
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(status: &str, io_status: &str) -> Value {
        json!({
            "device": "hikkoshi-disk-0", "type": "mirror", "status": status, "offset": 5, "len": 9,
            "io-status": io_status, "busy": false, "paused": true, "ready": true, "speed": 0,
        })
    }

    fn job(status: &str, io_status: &str) -> CopyJob {
        CopyJob::from_row(&row(status, io_status)).unwrap()
    }

    #[test]
    fn jobs_of_others_are_left_alone() {
        let mut other = row("running", "ok");
        other["device"] = "backup".into();
        assert_eq!(CopyJob::from_row(&other), None);
        assert!(job("ready", "ok").is_ready() && job("standby", "ok").is_ready());
        assert!(!job("running", "ok").is_ready() && job("concluded", "ok").has_ended());
        assert!(!job("paused", "ok").is_ready() && !job("standby", "ok").has_ended());
    }

    #[test]
    fn a_job_that_an_error_has_paused_is_not_ready() {
        for status in ["ready", "standby", "paused"] {
            for (io_status, failure) in [
                ("nospace", Failure::NoSpace),
                ("failed", Failure::Request(None)),
            ] {
                let job = job(status, io_status);
                assert!(!job.is_ready() && !job.has_ended(), "{job:?}");
                assert_eq!(job.failure, Some(failure));
            }
        }
    }

    #[test]
    fn the_message_of_a_job_that_has_ended_is_kept() {
        let mut ended = row("concluded", "ok");
        ended["error"] = "Operation canceled".into();
        let job = CopyJob::from_row(&ended).unwrap();
        let message = Failure::Message("Operation canceled".to_owned());
        assert_eq!(job.failure, Some(message));
    }
}
