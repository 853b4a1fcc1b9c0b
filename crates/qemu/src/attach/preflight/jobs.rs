//! Block jobs (backup, mirror, commit, stream). QEMU does not release the images
//! while one is running, which would otherwise show only after the pause.

use serde_json::{Value, json};

use super::Refusal;
use crate::qmp::{Client, QmpError};

/// The jobs that have not ended: the guest cannot be moved before they have.
pub(crate) fn check(client: &mut Client) -> Result<Vec<Refusal>, QmpError> {
    let jobs = client.execute("query-jobs", json!({}))?;
    running(&jobs).ok_or_else(|| QmpError::unexpected("query-jobs", jobs.to_string()))
}

/// The jobs that have not ended. `None` if this is not a list of jobs.
fn running(jobs: &Value) -> Option<Vec<Refusal>> {
    let mut found = Vec::new();
    for job in jobs.as_array()? {
        let text = |key| job.get(key).and_then(Value::as_str);
        let (id, kind, status) = (text("id")?, text("type")?, text("status")?);
        // A job that has ended and waits to be dismissed holds no image.
        if !matches!(status, "concluded" | "null") {
            found.push(Refusal::Job {
                id: id.to_owned(),
                kind: kind.to_owned(),
                status: status.to_owned(),
            });
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_that_have_ended_do_not_matter() {
        let job = |status| json!({"id": "bk", "type": "backup", "status": status});
        assert!(running(&json!([])).unwrap().is_empty());
        assert!(
            running(&json!([job("concluded"), job("null")]))
                .unwrap()
                .is_empty()
        );
        let two = running(&json!([job("running"), job("ready")]));
        assert_eq!(two.unwrap().len(), 2, "each job is reported");
        for status in [
            "created", "running", "paused", "ready", "standby", "pending", "new",
        ] {
            let found = running(&json!([job("concluded"), job(status)]));
            let text = found.unwrap()[0].to_string();
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
