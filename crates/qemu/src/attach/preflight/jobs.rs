//! Block jobs (backup, mirror, commit, stream). QEMU does not release the images
//! while one is running, which would otherwise show only after the pause.

use serde::Serialize;
use serde_json::{Value, json};

use super::Refusal;
use crate::disks;
use crate::qmp::{Client, QmpError};

/// A job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Job {
    /// Its id.
    pub id: String,
    /// Its type, such as `backup`.
    pub kind: String,
    /// QEMU's name for its status.
    pub status: String,
}

impl Job {
    /// Whether it has not ended. One that has ended and waits to be dismissed holds no image.
    fn holds_images(&self) -> bool {
        !matches!(self.status.as_str(), "concluded" | "null")
    }
}

/// All jobs.
pub(crate) fn list(client: &mut Client) -> Result<Vec<Job>, QmpError> {
    let jobs = client.execute("query-jobs", json!({}))?;
    parse(&jobs).ok_or_else(|| QmpError::unexpected("query-jobs", jobs.to_string()))
}

/// The jobs that have not ended: the guest cannot be moved before they have. Those that `copy` its
/// disks for this move end when it is paused.
pub(crate) fn check(client: &mut Client, copy: bool) -> Result<Vec<Refusal>, QmpError> {
    let ends_itself = |job: &Job| copy && disks::is_ours(&job.id);
    let running = list(client)?.into_iter();
    let running = running.filter(|job| job.holds_images() && !ends_itself(job));
    let refusal = |Job { id, kind, status }| match disks::is_ours(&id) {
        true => Refusal::Copy { id },
        false => Refusal::Job { id, kind, status },
    };
    Ok(running.map(refusal).collect())
}

/// `None` if this is not a list of jobs.
fn parse(jobs: &Value) -> Option<Vec<Job>> {
    let job = |job: &Value| {
        let text = |key| Some(job.get(key)?.as_str()?.to_owned());
        Some(Job {
            id: text("id")?,
            kind: text("type")?,
            status: text("status")?,
        })
    };
    jobs.as_array()?.iter().map(job).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_that_have_ended_do_not_matter() {
        let jobs = |statuses: &[&str]| {
            let job = |status| json!({"id": "bk", "type": "backup", "status": status});
            let jobs: Vec<_> = statuses.iter().map(job).collect();
            parse(&json!(jobs)).unwrap()
        };
        assert_eq!(jobs(&[]), []);
        let ended = jobs(&["concluded", "null"]);
        assert_eq!(ended.len(), 2);
        assert!(!ended.iter().any(Job::holds_images));
        for status in [
            "created", "running", "paused", "ready", "standby", "pending", "new",
        ] {
            assert!(jobs(&[status])[0].holds_images(), "{status}");
        }
        for odd in [json!({}), json!([1]), json!([{"id": "bk"}])] {
            assert!(parse(&odd).is_none(), "{odd}");
        }
    }
}
