//! The block jobs that copy disks, as the source's QEMU has them.
//!
//! A job copies everything first. In the mode `write-blocking` it also writes at once to the target
//! what the guest writes meanwhile, and QEMU completes the guest's request when both are done. So
//! it stays complete (`ready`) once it is.
//!
//! `block-job-cancel` without `force` ends a job that is ready in the good way: QEMU finishes what
//! is in progress, flushes the target, and the guest's device keeps its own image. With `force` the
//! job just ends. A job that has ended stays listed with its error until it is dismissed.

use std::time::{Duration, Instant};

use hikkoshi_engine::DiskProgress;
use serde_json::{Value, json};
use thiserror::Error;

use super::{CopiedDisk, filter_name, is_ours, name};
use crate::qmp::{Client, QmpError};

/// How long to wait for an event before jobs are listed again.
const EVENT_WAIT: Duration = Duration::from_millis(20);

/// How long QEMU may take to end a job whose connection is closed, and to remove its node.
const REMOVE_TIMEOUT: Duration = Duration::from_secs(20);

/// A disk was not copied. The source's disks are unchanged.
#[derive(Debug, Error)]
pub(crate) enum CopyError {
    /// A QMP command failed.
    #[error("copying the disk {disk}")]
    Qmp {
        /// The disk.
        disk: String,
        /// Why.
        source: QmpError,
    },
    /// QEMU's jobs could not be listed or ended.
    #[error("copying the guest's disks")]
    Jobs(#[from] QmpError),
    /// The job has failed.
    #[error("copying the disk {disk}: QEMU reports: {error}{advice}", advice = advice(error))]
    Failed {
        /// The disk.
        disk: String,
        /// QEMU's message.
        error: String,
    },
    /// Another program has ended the job.
    #[error(
        "copying the disk {disk}: its block job '{job}' is gone: another program has ended it; move \
         the guest again"
    )]
    Gone {
        /// The disk.
        disk: String,
        /// The job.
        job: String,
    },
    /// The job is not complete.
    #[error(
        "copying the disk {disk}: its block job is '{status}', and not complete: another program has \
         changed it; move the guest again"
    )]
    NotReady {
        /// The disk.
        disk: String,
        /// QEMU's name for its status.
        status: String,
    },
    /// The guest is not paused.
    #[error(
        "completing the copies of the guest's disks: the guest is not paused for the switchover"
    )]
    NotPaused,
    /// A step was left out.
    #[error("copying the guest's disks: there is no disk {number}, or its copy has begun before")]
    NoDisk {
        /// Its number.
        number: usize,
    },
    /// The sockets could not be created.
    #[error("copying the disk {disk}: creating its connection")]
    Socket {
        /// The disk.
        disk: String,
        /// Why.
        source: std::io::Error,
    },
    /// The undo record could not be written.
    #[error("copying the guest's disks: writing the undo record")]
    Record(#[source] std::io::Error),
}

/// What to do about a job's error.
fn advice(error: &str) -> &'static str {
    if error.contains("No space left") {
        "; free space for the disk at the destination, or give it a larger file system, and move \
         the guest again"
    } else {
        "; see also the messages of 'hikkoshi receive' and of QEMU at the destination"
    }
}

/// A job of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
struct CopyJob {
    id: String,
    status: String,
    done: u64,
    total: u64,
    error: Option<String>,
}

impl CopyJob {
    fn of(row: &Value) -> Option<Self> {
        let text = |key| row.get(key).and_then(Value::as_str).map(str::to_owned);
        let number = |key| row.get(key).and_then(Value::as_u64);
        Some(Self {
            id: text("id").filter(|id| is_ours(id))?,
            status: text("status")?,
            done: number("current-progress")?,
            total: number("total-progress")?,
            error: text("error"),
        })
    }

    /// QEMU reports a job that is ready as `standby` while it drains the disk.
    fn is_ready(&self) -> bool {
        matches!(self.status.as_str(), "ready" | "standby")
    }

    fn has_ended(&self) -> bool {
        matches!(self.status.as_str(), "concluded" | "null")
    }
}

fn list(client: &mut Client) -> Result<Vec<CopyJob>, QmpError> {
    let jobs = client.execute("query-jobs", json!({}))?;
    let rows = jobs
        .as_array()
        .ok_or_else(|| QmpError::unexpected("query-jobs", "not a list"))?;
    Ok(rows.iter().filter_map(CopyJob::of).collect())
}

/// Adds the target and starts the job. QEMU has the descriptor of the connection by the copy's
/// name, and takes it.
pub(crate) fn start(client: &mut Client, number: usize, disk: &CopiedDisk) -> Result<(), QmpError> {
    let name = name(number);
    let target = json!({
        "driver": "nbd", "node-name": name, "export": name,
        "server": { "type": "fd", "str": name },
        // Parts that hold zeros need no room at the destination, if its image allows that.
        "discard": "unmap",
    });
    client.execute("blockdev-add", target)?;
    let job = json!({
        "job-id": name, "device": disk.node, "target": name, "sync": "full",
        "copy-mode": "write-blocking", "filter-node-name": filter_name(number),
        "auto-dismiss": false,
    });
    client.execute("blockdev-mirror", job).map(drop)
}

/// How far the jobs of these disks are.
pub(crate) fn progress(
    client: &mut Client,
    disks: &[CopiedDisk],
) -> Result<Vec<DiskProgress>, CopyError> {
    let jobs = list(client)?;
    let of = |(number, disk): (usize, &CopiedDisk)| -> Result<DiskProgress, CopyError> {
        let job = find(&jobs, number, disk)?;
        Ok(DiskProgress {
            name: disk.label.clone(),
            copied: job.done,
            total: job.total,
            in_sync: job.is_ready(),
        })
    };
    disks.iter().enumerate().map(of).collect()
}

/// The job of this disk; an error if it has ended.
fn find<'a>(
    jobs: &'a [CopyJob],
    number: usize,
    disk: &CopiedDisk,
) -> Result<&'a CopyJob, CopyError> {
    let disk = || disk.label.clone();
    let id = name(number);
    match jobs.iter().find(|job| job.id == id) {
        Some(job) if job.has_ended() || job.error.is_some() => Err(CopyError::Failed {
            disk: disk(),
            error: job
                .error
                .clone()
                .unwrap_or_else(|| "the block job has ended".to_owned()),
        }),
        Some(job) => Ok(job),
        None => Err(CopyError::Gone {
            disk: disk(),
            job: id,
        }),
    }
}

/// Ends the jobs of a paused guest, all of which are ready, and removes their targets. Returns what
/// they have copied.
///
/// The guest writes nothing any more, so both disks are the same when this returns, and the targets
/// are flushed. QEMU cannot release its images before.
pub(crate) fn complete(
    client: &mut Client,
    disks: &[CopiedDisk],
) -> Result<Vec<DiskProgress>, CopyError> {
    let jobs = list(client)?;
    for (number, disk) in disks.iter().enumerate() {
        let job = find(&jobs, number, disk)?;
        // It would be cancelled instead.
        if !job.is_ready() {
            return Err(CopyError::NotReady {
                disk: disk.label.clone(),
                status: job.status.clone(),
            });
        }
    }
    for number in 0..disks.len() {
        client.execute("block-job-cancel", json!({ "device": name(number) }))?;
    }
    let ended = loop {
        let jobs = list(client)?;
        if jobs.iter().all(CopyJob::has_ended) {
            break jobs;
        }
        wait_for_change(client)?;
    };
    let mut copied = Vec::with_capacity(disks.len());
    for (number, disk) in disks.iter().enumerate() {
        let id = name(number);
        let label = || disk.label.clone();
        let Some(job) = ended.iter().find(|job| job.id == id) else {
            return Err(CopyError::Gone {
                disk: label(),
                job: id,
            });
        };
        if let Some(error) = job.error.clone() {
            return Err(CopyError::Failed {
                disk: label(),
                error,
            });
        }
        copied.push(DiskProgress {
            name: label(),
            copied: job.done,
            total: job.total,
            in_sync: true,
        });
    }
    for number in 0..disks.len() {
        client.execute("job-dismiss", json!({ "id": name(number) }))?;
        client.execute("blockdev-del", json!({ "node-name": name(number) }))?;
    }
    Ok(copied)
}

/// Waits for the next change of a job, or for a moment.
fn wait_for_change(client: &mut Client) -> Result<(), QmpError> {
    let until = Instant::now() + EVENT_WAIT;
    let change = |event: &crate::qmp::QmpEvent| {
        (event.name == "JOB_STATUS_CHANGE" || event.name.starts_with("BLOCK_JOB_")).then_some(())
    };
    client.wait_event("the disks' jobs to end", until, change)?;
    Ok(())
}

/// Begins to end what has not ended of the copies, without waiting: from now on the guest's writes
/// do not go to the targets. Can be repeated.
pub(crate) fn cancel(client: &mut Client) -> Result<(), QmpError> {
    for job in list(client)?.iter().filter(|job| !job.has_ended()) {
        cancel_job(client, job)?;
    }
    Ok(())
}

fn cancel_job(client: &mut Client, job: &CopyJob) -> Result<(), QmpError> {
    let arguments = json!({ "device": job.id, "force": true });
    // It may have ended, or been dismissed, since.
    ignore_refusal(client.execute("block-job-cancel", arguments))
}

/// Removes everything of copies from QEMU, of which there may be `number`, whatever has been done
/// of them. The guest's devices keep their own images. Can be repeated.
pub(crate) fn remove(client: &mut Client, number: usize) -> Result<(), QmpError> {
    let deadline = Instant::now() + REMOVE_TIMEOUT;
    loop {
        let jobs = list(client)?;
        for job in &jobs {
            match job.has_ended() {
                true => {
                    let id = json!({ "id": job.id });
                    ignore_refusal(client.execute("job-dismiss", id))?;
                }
                false => cancel_job(client, job)?,
            }
        }
        if jobs.is_empty() || Instant::now() > deadline {
            break;
        }
        wait_for_change(client)?;
    }
    for number in 0..number {
        ignore_refusal(client.execute("closefd", json!({ "fdname": name(number) })))?;
    }
    let nodes = client.execute("query-named-block-nodes", json!({ "flat": true }))?;
    for node in nodes.as_array().into_iter().flatten() {
        let name = node.get("node-name").and_then(Value::as_str);
        if let Some(name) = name.filter(|name| is_ours(name)) {
            client.execute("blockdev-del", json!({ "node-name": name }))?;
        }
    }
    Ok(())
}

fn ignore_refusal(outcome: Result<Value, QmpError>) -> Result<(), QmpError> {
    match outcome {
        Err(error) if !error.is_refusal() => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(status: &str, error: Option<&str>) -> CopyJob {
        let mut row = json!({
            "id": "hikkoshi-disk-0", "type": "mirror", "status": status,
            "current-progress": 5, "total-progress": 9,
        });
        if let Some(error) = error {
            row["error"] = error.into();
        }
        CopyJob::of(&row).unwrap()
    }

    #[test]
    fn jobs_of_others_are_left_alone() {
        let other = json!({
            "id": "backup", "type": "backup", "status": "running",
            "current-progress": 5, "total-progress": 9,
        });
        assert_eq!(CopyJob::of(&other), None);
        assert!(job("ready", None).is_ready() && job("standby", None).is_ready());
        assert!(!job("running", None).is_ready() && job("concluded", None).has_ended());
    }

    #[test]
    fn an_ended_job_is_an_error_that_says_why() {
        let disk = CopiedDisk {
            disk: hikkoshi_wire::Disk {
                device: "".into(),
                drive: "".into(),
                bytes: 0,
                image: "".into(),
            },
            node: String::new(),
            label: "vda".into(),
        };
        let full = [job("concluded", Some("No space left on device"))];
        let error = find(&full, 0, &disk).unwrap_err().to_string();
        assert!(
            error.starts_with("copying the disk vda: QEMU reports: No space left on device; free"),
            "{error}"
        );
        let error = find(&[], 0, &disk).unwrap_err().to_string();
        assert!(error.contains("'hikkoshi-disk-0' is gone"), "{error}");
        assert!(find(&[job("running", None)], 0, &disk).is_ok());
    }
}
