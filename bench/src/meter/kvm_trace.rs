//! The kernel's trace of KVM's asynchronous page faults (`Documentation/trace/events.rst`).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::BenchError;

/// Where tracefs is mounted.
const TRACEFS: &str = "/sys/kernel/tracing";
/// A trace of its own, beside the one that others may use.
const INSTANCE: &str = "/sys/kernel/tracing/instances/hikkoshi-bench";
/// The events.
const EVENTS: [&str; 5] = [
    "kvm_try_async_get_page",
    "kvm_async_pf_repeated_fault",
    "kvm_async_pf_not_present",
    "kvm_async_pf_completed",
    "kvm_async_pf_ready",
];
/// KiB for each processor: some ten thousand events.
const BUFFER_KIB: &str = "8192";

/// An event of KVM.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct KvmEvent {
    /// The time-stamp counter.
    pub ticks: u64,
    /// What happened.
    pub kind: KvmEventKind,
    /// The guest's address of the page.
    pub address: u64,
    /// The token, if the event has one.
    pub token: Option<u32>,
}

/// What happened.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum KvmEventKind {
    /// A virtual processor has faulted, and a worker thread of the kernel is to fetch the page.
    Queued,
    /// It has faulted on a page that is being fetched for it: it is halted until a page is there.
    Repeated,
    /// The guest is to be interrupted: the page is not present.
    NotPresent,
    /// The kernel worker has the page.
    Fetched,
    /// The guest is to be interrupted: the page is ready.
    Ready,
}

/// A running trace; ends when dropped.
#[derive(Debug)]
pub(crate) struct KvmTrace {
    folder: PathBuf,
}

impl KvmTrace {
    /// Starts it, with the time-stamp counter as the clock.
    ///
    /// # Errors
    /// When tracefs cannot be mounted, or the kernel has no such events.
    pub(crate) fn start() -> Result<Self, BenchError> {
        if !Path::new(TRACEFS).join("instances").exists() {
            // A failure shows below.
            let mut mount = Command::new("mount");
            let _ = mount.args(["-t", "tracefs", "tracefs", TRACEFS]).status();
        }
        let folder = PathBuf::from(INSTANCE);
        // An earlier bench may have been killed.
        let _ = fs::remove_dir(&folder);
        fs::create_dir(&folder).map_err(|source| BenchError::File {
            doing: "starting a trace of the kernel (as root) in",
            path: folder.clone(),
            source,
        })?;
        let trace = Self { folder };
        trace.set("trace_clock", "x86-tsc")?;
        trace.set("buffer_size_kb", BUFFER_KIB)?;
        for event in EVENTS {
            trace.set(&format!("events/kvm/{event}/enable"), "1")?;
        }
        Ok(trace)
    }

    fn set(&self, name: &str, value: &str) -> Result<(), BenchError> {
        let path = self.folder.join(name);
        fs::write(&path, value).map_err(|source| BenchError::File {
            doing: "writing",
            path,
            source,
        })
    }

    /// Ends it, and returns the events.
    pub(crate) fn finish(self) -> Result<Vec<KvmEvent>, BenchError> {
        self.set("tracing_on", "0")?;
        let path = self.folder.join("trace");
        let text = fs::read_to_string(&path).map_err(|source| BenchError::File {
            doing: "reading",
            path,
            source,
        })?;
        Ok(text.lines().filter_map(parse).collect())
    }
}

impl Drop for KvmTrace {
    fn drop(&mut self) {
        // Files of tracefs cannot be removed one by one; the folder can.
        let _ = fs::remove_dir(&self.folder);
    }
}

/// Parses a line such as `  CPU 0/KVM-77  [000] d..1. 853027: kvm_async_pf_ready: token 0x1000 gva
/// 0x5000`.
fn parse(line: &str) -> Option<KvmEvent> {
    let (before, event) = line.split_once(": kvm_")?;
    let ticks = before.split_whitespace().next_back()?.parse().ok()?;
    let (name, text) = event.split_once(": ")?;
    let kind = match name {
        "try_async_get_page" => KvmEventKind::Queued,
        "async_pf_repeated_fault" => KvmEventKind::Repeated,
        "async_pf_not_present" => KvmEventKind::NotPresent,
        "async_pf_completed" => KvmEventKind::Fetched,
        "async_pf_ready" => KvmEventKind::Ready,
        _ => return None,
    };
    let number = |key: &str| {
        let mut words = text.split([' ', '=', ',']).filter(|word| !word.is_empty());
        words.find(|word| *word == key)?;
        u64::from_str_radix(words.next()?.trim_start_matches("0x"), 16).ok()
    };
    Some(KvmEvent {
        ticks,
        kind,
        address: number("gva")?,
        token: number("token").and_then(|token| u32::try_from(token).ok()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_of_each_event_are_parsed() {
        let lines = [
            ("kvm_try_async_get_page: gva = 0x405008, gfn = 0x405", None),
            (
                "kvm_async_pf_repeated_fault: gva = 0x405008, gfn = 0x405",
                None,
            ),
            (
                "kvm_async_pf_not_present: token 0x3000 gva 0x405008",
                Some(0x3000),
            ),
            (
                "kvm_async_pf_completed: gva 0x405008 address 0x7f0000405000",
                None,
            ),
            (
                "kvm_async_pf_ready: token 0x3000 gva 0x405008",
                Some(0x3000),
            ),
        ];
        for (text, token) in lines {
            let line = format!("       CPU 0/KVM-812     [001] d..1. 8530270111: {text}");
            let event = parse(&line).unwrap();
            assert_eq!((event.ticks, event.address), (8_530_270_111, 0x40_5008));
            assert_eq!(event.token, token);
        }
        assert_eq!(parse("# tracer: nop"), None);
        assert_eq!(parse("  x-1 [000] d..1. 1: kvm_entry: vcpu 0"), None);
    }
}
