//! Block jobs (backup, mirror, commit, stream). QEMU does not release the images
//! while one is running, which would otherwise show only after the pause.

use serde_json::{Value, json};

use super::Refusal;
use crate::qmp::{Client, QmpError};

/// Refuses a guest with a job that has not ended.
pub(crate) fn check(client: &mut Client) -> Result<(), Refusal> {
    let jobs = client.execute("query-jobs", json!({}))?;
    match running(&jobs) {
        None => Err(QmpError::unexpected("query-jobs", jobs.to_string()).into()),
        Some(None) => Ok(()),
        Some(Some(job)) => Err(job),
    }
}

/// The first job that has not ended. `None` if this is not a list of jobs.
fn running(jobs: &Value) -> Option<Option<Refusal>> {
    for job in jobs.as_array()? {
        let text = |key| job.get(key).and_then(Value::as_str);
        let (id, kind, status) = (text("id")?, text("type")?, text("status")?);
        // A job that has ended and waits to be dismissed holds no image.
        if !matches!(status, "concluded" | "null") {
            return Some(Some(Refusal::Job {
                id: id.to_owned(),
                kind: kind.to_owned(),
                status: status.to_owned(),
            }));
        }
    }
    Some(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_that_have_ended_do_not_matter() {
        let job = |status| json!({"id": "bk", "type": "backup", "status": status});
        assert!(matches!(running(&json!([])), Some(None)));
        assert!(matches!(
            running(&json!([job("concluded"), job("null")])),
            Some(None)
        ));
        for status in [
            "created", "running", "paused", "ready", "standby", "pending", "new",
        ] {
            let found = running(&json!([job("concluded"), job(status)]));
            let text = found.unwrap().unwrap().to_string();
            assert!(
                text.contains("'bk' (backup)") && text.contains(status),
                "{text}"
            );
        }
        for odd in [json!({}), json!([1]), json!([{"id": "bk"}])] {
            assert!(running(&odd).is_none(), "{odd}");
        }
    }
}
