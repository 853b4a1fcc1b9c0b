//! The block jobs that copy disks, as the source's QEMU has them.
//!
//! A job copies everything first. In the mode `write-blocking` it also writes at once to the target
//! what the guest writes meanwhile, and QEMU completes the guest's request when both are done. So
//! it stays complete (`ready`) once it is. A limit (`speed`) is one for the copy: the guest's
//! writes do not wait for it.
//!
//! `block-job-cancel` without `force` ends a job that is ready in the good way: QEMU finishes what
//! is in progress, flushes the target, and the guest's device keeps its own image. With `force` the
//! job just ends. A job that has ended stays listed with its error until it is dismissed.
//!
//! **A job must not end while the guest runs**: QEMU does not wait for the writes of the guest that
//! the job is passing on, and these clear a bit of its freed memory when they are done.
//! So an error pauses the job (`on-target-error: stop`) instead of ending it, and whoever ends it
//! pauses the guest before: QEMU completes all of its writes then.

use std::time::{Duration, Instant};

use hikkoshi_account::DiskCopy;
use serde_json::{Value, json};

use super::copy_error::CopyError;
use super::guest_writes::GuestWrites;
use super::job_speed::JobSpeed;
use super::mirror_status::{CopyJob, Failure, list};
use super::{CopiedDisk, filter_name, is_ours, name};
use crate::qmp::{Client, QmpError, WATCHED_TIMEOUT};

/// How long to wait for an event before jobs are listed again.
const EVENT_WAIT: Duration = Duration::from_millis(20);

/// How long QEMU may take to end a job whose connection is closed, and to remove its node.
const REMOVE_TIMEOUT: Duration = Duration::from_secs(20);

/// Adds the target. QEMU has the descriptor of the connection by the copy's name, and takes it. It
/// does nothing else until the connection is set up.
pub(crate) fn add_target(client: &mut Client, number: usize) -> Result<(), QmpError> {
    let name = name(number);
    let target = json!({
        "driver": "nbd", "node-name": name, "export": name,
        "server": { "type": "fd", "str": name },
        // Parts that hold zeros need no room at the destination, if its image allows that.
        "discard": "unmap",
    });
    let added = client.execute_within("blockdev-add", target, WATCHED_TIMEOUT);
    added.map(drop)
}

/// Starts the job of a disk whose target was added.
pub(crate) fn start(
    client: &mut Client,
    number: usize,
    disk: &CopiedDisk,
    speed: JobSpeed,
) -> Result<(), QmpError> {
    let name = name(number);
    let job = json!({
        "job-id": name, "device": disk.node, "target": name, "sync": "full",
        "copy-mode": "write-blocking", "filter-node-name": filter_name(number),
        "auto-dismiss": false, "speed": speed.bytes_per_second(),
        // It waits for us then. The guest's writes are done on its own image.
        "on-source-error": "stop", "on-target-error": "stop",
    });
    // It may wait for writes of the guest, and these for the destination's other disks.
    let started = client.execute_within("blockdev-mirror", job, WATCHED_TIMEOUT);
    started.map(drop)
}

/// Limits the jobs, whose limits are `present`, to `wanted`, and updates `present`. One that QEMU
/// refuses stays as it is: the job may have ended.
pub(crate) fn limit(
    client: &mut Client,
    present: &mut [JobSpeed],
    wanted: &[JobSpeed],
) -> Result<(), QmpError> {
    for (number, (present, &wanted)) in present.iter_mut().zip(wanted).enumerate() {
        if *present == wanted {
            continue;
        }
        let arguments = json!({ "device": name(number), "speed": wanted.bytes_per_second() });
        match client.execute("block-job-set-speed", arguments) {
            Ok(_) => *present = wanted,
            Err(error) if error.is_refusal() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// How far the jobs of these disks are, without what the guest writes meanwhile.
pub(crate) fn progress(
    client: &mut Client,
    disks: &[CopiedDisk],
    writes: &GuestWrites,
) -> Result<Vec<DiskCopy>, CopyError> {
    // First, so that it is not more than the jobs have added.
    let written = writes.since(client)?;
    let jobs = list(client)?;
    let of = |(number, disk): (usize, &CopiedDisk)| -> Result<DiskCopy, CopyError> {
        let job = find(&jobs, number, disk)?;
        let written = written.get(number).copied().unwrap_or(0);
        Ok(DiskCopy {
            name: disk.label.clone(),
            copied_bytes: job.done.saturating_sub(written),
            total_bytes: job.total.saturating_sub(written),
            in_sync: job.is_ready(),
        })
    };
    disks.iter().enumerate().map(of).collect()
}

/// The job of this disk; an error if it has failed, or ended.
fn find<'a>(
    jobs: &'a [CopyJob],
    number: usize,
    disk: &CopiedDisk,
) -> Result<&'a CopyJob, CopyError> {
    let id = name(number);
    let Some(job) = jobs.iter().find(|job| job.id == id) else {
        return Err(CopyError::Gone {
            disk: disk.label.clone(),
            job: id,
        });
    };
    let ended = || job.has_ended().then_some(Failure::Ended);
    match job.failure.clone().or_else(ended) {
        Some(failure) => Err(CopyError::Failed {
            disk: disk.label.clone(),
            failure,
        }),
        None => Ok(job),
    }
}

/// Ends the jobs of a paused guest, all of which are ready, and removes their targets.
///
/// The guest writes nothing any more, so both disks are the same when this returns, and the targets
/// are flushed. QEMU cannot release its images before.
pub(crate) fn complete(client: &mut Client, disks: &[CopiedDisk]) -> Result<(), CopyError> {
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
    for (number, disk) in disks.iter().enumerate() {
        let asked = client.execute("block-job-cancel", json!({ "device": name(number) }));
        if let Err(error) = asked {
            // QEMU refuses it if the job has failed since.
            find(&list(client)?, number, disk)?;
            return Err(error.into());
        }
    }
    let ended = loop {
        let jobs = list(client)?;
        if jobs.iter().all(CopyJob::has_ended) {
            break jobs;
        }
        // Those that fail now do not end.
        for (number, disk) in disks.iter().enumerate() {
            let fails = |job: &CopyJob| job.id == name(number) && !job.has_ended();
            if jobs.iter().any(fails) {
                find(&jobs, number, disk)?;
            }
        }
        wait_for_change(client)?;
    };
    for (number, disk) in disks.iter().enumerate() {
        let id = name(number);
        let label = || disk.label.clone();
        let Some(job) = ended.iter().find(|job| job.id == id) else {
            return Err(CopyError::Gone {
                disk: label(),
                job: id,
            });
        };
        if let Some(failure) = job.failure.clone() {
            return Err(CopyError::Failed {
                disk: label(),
                failure,
            });
        }
    }
    for number in 0..disks.len() {
        client.execute("job-dismiss", json!({ "id": name(number) }))?;
        client.execute("blockdev-del", json!({ "node-name": name(number) }))?;
    }
    Ok(())
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

/// Whether one of the jobs has not ended.
pub(crate) fn is_any_left(client: &mut Client) -> Result<bool, QmpError> {
    Ok(list(client)?.iter().any(|job| !job.has_ended()))
}

fn cancel_job(client: &mut Client, job: &CopyJob) -> Result<(), QmpError> {
    let arguments = json!({ "device": job.id, "force": true });
    // It may have ended, or been dismissed, since.
    ignore_refusal(client.execute("block-job-cancel", arguments))
}

/// Removes everything of copies from QEMU, of which there may be `number`, whatever has been done
/// of them. The guest's devices keep their own images. If jobs are left, **the guest must be
/// paused**. Can be repeated.
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
    use crate::qmp::scripted;

    fn job(status: &str, failure: Option<Failure>) -> CopyJob {
        CopyJob {
            id: name(0),
            status: status.to_owned(),
            done: 5,
            total: 9,
            failure,
        }
    }

    #[test]
    fn a_limit_that_was_refused_is_set_the_next_time() {
        let mut answers = [Err("not now"), Ok(json!({})), Ok(json!({}))].into_iter();
        let (mut client, qemu) =
            scripted::session(move |_| answers.next().unwrap_or(Err("not expected")));
        let [old, new] = [1, 2].map(|limit| JobSpeed::of_each(Some(limit), 1));
        let mut present = [old, old];
        limit(&mut client, &mut present, &[new, new]).unwrap();
        assert_eq!(present, [old, new]);
        limit(&mut client, &mut present, &[new, new]).unwrap();
        assert_eq!(present, [new, new]);
        limit(&mut client, &mut present, &[new, new]).unwrap();
        drop(client);
        assert_eq!(qemu.join().unwrap(), ["block-job-set-speed"; 3]);
    }

    #[test]
    fn a_job_that_has_failed_or_ended_is_an_error_that_says_why() {
        let disk = CopiedDisk {
            node: String::new(),
            label: "vda".into(),
            bytes: 0,
            images: Vec::new(),
            left_behind: Default::default(),
        };
        let error = |jobs: &[CopyJob]| find(jobs, 0, &disk).unwrap_err().to_string();
        let full = Some(Failure::NoSpace);
        // QEMU's status of a ready job that an error has paused is that of a ready one in a drain.
        for status in ["paused", "standby", "ready", "concluded"] {
            let error = error(&[job(status, full.clone())]);
            let expected = "copying the disk vda: QEMU reports: No space left on device; free";
            assert!(error.starts_with(expected), "{error}");
        }
        let ended = error(&[job("concluded", None)]);
        assert!(ended.contains("the block job has ended"), "{ended}");
        let gone = error(&[]);
        assert!(gone.contains("'hikkoshi-disk-0' is gone"), "{gone}");
        for status in ["running", "paused", "standby", "ready"] {
            assert!(find(&[job(status, None)], 0, &disk).is_ok());
        }
    }
}
