//! Block jobs (backup, mirror, commit, stream): QEMU does not let go of the
//! images while one is running, which would be found out after the pause only.

use serde_json::{Value, json};

use super::Refusal;
use crate::qmp::{Client, QmpError};

/// Refuses a guest with a job that is not over.
pub(crate) fn check(client: &mut Client) -> Result<(), Refusal> {
    let jobs = client.execute("query-jobs", json!({}))?;
    match running(&jobs) {
        None => Err(QmpError::unexpected("query-jobs", jobs.to_string()).into()),
        Some(None) => Ok(()),
        Some(Some(job)) => Err(job),
    }
}

/// The first job that is not over. `None` if this is no list of jobs.
fn running(jobs: &Value) -> Option<Option<Refusal>> {
    for job in jobs.as_array()? {
        let text = |key| job.get(key).and_then(Value::as_str);
        let (id, kind, status) = (text("id")?, text("type")?, text("status")?);
        // A job that has ended and waits for its owner to look holds no image.
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
    fn jobs_that_are_over_are_no_hindrance() {
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
