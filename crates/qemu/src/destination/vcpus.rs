//! Finds out which of QEMU's threads are virtual processors.

use std::fs;
use std::io::Read;

use hikkoshi_account::FaultKind;
use hikkoshi_engine::ThreadName;
use hikkoshi_linux::{Process, is_kernel_worker, kernel_thread_name};
use serde_json::{Value, json};

use crate::qmp::{Client, QmpError};

/// A virtual processor and its thread. With `thread=single` under TCG, several have
/// the same thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Vcpu {
    number: u32,
    thread: u32,
}

/// Queries QEMU.
pub(crate) fn query(client: &mut Client) -> Result<Vec<Vcpu>, QmpError> {
    let answer = client.execute("query-cpus-fast", json!({}))?;
    Ok(parse(&answer))
}

/// The processors whose threads are named `CPU N/KVM` or `CPU N/TCG`, as QEMU names them with
/// `-name debug-threads=on`, which libvirt uses.
pub(crate) fn named(process: &Process) -> Vec<Vcpu> {
    let tasks = fs::read_dir(format!("/proc/{}/task", process.pid()));
    let mut vcpus: Vec<_> = tasks
        .into_iter()
        .flatten()
        .filter_map(|task| {
            let thread = task.ok()?.file_name().to_str()?.parse().ok()?;
            let name = process.open_proc(&format!("task/{thread}/comm")).ok()?;
            let name = std::io::read_to_string(name.take(64)).ok()?;
            let (number, _) = name.strip_prefix("CPU ")?.split_once('/')?;
            let number = number.parse().ok()?;
            Some(Vcpu { number, thread })
        })
        .collect();
    vcpus.sort_by_key(|vcpu| vcpu.number);
    vcpus
}

/// Skips entries that cannot be parsed: the names are only for people.
fn parse(answer: &Value) -> Vec<Vcpu> {
    let number = |value: &Value| value.as_u64().and_then(|number| number.try_into().ok());
    let vcpu = |entry: &Value| {
        Some(Vcpu {
            number: number(entry.get("cpu-index")?)?,
            thread: number(entry.get("thread-id")?)?,
        })
    };
    let entries = answer.as_array().map(Vec::as_slice).unwrap_or_default();
    entries.iter().filter_map(vcpu).collect()
}

/// The name of the thread `thread` that a userfaultfd of QEMU reports: one of QEMU's threads, or of
/// the kernel. Does not query QEMU, which may be waiting.
///
/// The kernel reports the ID in the PID namespace of the thread itself, and QEMU that of its
/// processors, too. So a processor is found if QEMU has a namespace of its own; its other threads,
/// and the kernel's, are not: `None`.
pub(crate) fn name(process: &Process, vcpus: &[Vcpu], thread: u32) -> Option<ThreadName> {
    let mut of_thread = vcpus.iter().filter(|vcpu| vcpu.thread == thread);
    let vcpu = of_thread.next().filter(|_| of_thread.next().is_none());
    let kind = vcpu.map_or(FaultKind::Other, |vcpu| FaultKind::Vcpu(vcpu.number));
    if !has_our_process_ids(process) {
        let name = format!("CPU {}", vcpu?.number);
        return Some(ThreadName { name, kind });
    }
    let mut name = String::new();
    let comm = process.open_proc(&format!("task/{thread}/comm"));
    match comm.and_then(|file| file.take(64).read_to_string(&mut name)) {
        Ok(_) => Some(ThreadName {
            name: name.trim_end().to_owned(),
            kind,
        }),
        Err(_) => kernel_thread_name(thread).map(of_the_kernel),
    }
}

/// Whether the process is in this process's PID namespace. If that cannot be found out, it is
/// assumed: then only a name may be wrong.
fn has_our_process_ids(process: &Process) -> bool {
    let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let (theirs, ours) = (namespace(&process.pid().to_string()), namespace("self"));
    theirs.is_none() || theirs == ours
}

/// Only its workers fault for virtual processors. Before Linux 6.4, vhost has threads of the kernel
/// as well.
fn of_the_kernel(name: String) -> ThreadName {
    let kind = if is_kernel_worker(&name) {
        FaultKind::Asynchronous
    } else {
        FaultKind::Other
    };
    ThreadName { name, kind }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_and_their_threads_are_parsed() {
        let vcpus = parse(&json!([
            {"cpu-index": 0, "thread-id": 4711, "qom-path": "/machine/unattached/device[0]"},
            {"cpu-index": 1, "thread-id": 4712},
            {"cpu-index": "two", "thread-id": 4713},
            {"thread-id": -1},
        ]));
        let expected = [(0, 4711), (1, 4712)].map(|(number, thread)| Vcpu { number, thread });
        assert_eq!(vcpus, expected);
        assert_eq!(parse(&json!({"return": 1})), []);
    }

    #[test]
    fn a_thread_has_a_name_and_possibly_a_processor() {
        let process = Process::open(std::process::id()).unwrap();
        let thread = std::process::id();
        let own = std::fs::read_to_string("/proc/self/comm").unwrap();
        let vcpu = |number| Vcpu { number, thread };
        for (vcpus, expected) in [
            (vec![], FaultKind::Other),
            (vec![vcpu(3)], FaultKind::Vcpu(3)),
            // Two processors in one thread: it is neither.
            (vec![vcpu(0), vcpu(1)], FaultKind::Other),
        ] {
            let named = name(&process, &vcpus, thread).unwrap();
            assert_eq!(named.kind, expected);
            assert_eq!(named.name, own.trim_end());
        }
        assert_eq!(name(&process, &[], u32::MAX), None);
    }

    #[test]
    fn workers_of_the_kernel_fault_for_processors() {
        for (name, kind) in [
            ("kworker/1:2-events", FaultKind::Asynchronous),
            ("vhost-4711", FaultKind::Other),
        ] {
            assert_eq!(of_the_kernel(name.to_owned()).kind, kind);
        }
    }
}
