//! Drops pages of another process's private memory.
//!
//! Only a process itself may drop its pages: `process_madvise` refuses `MADV_DONTNEED` for another
//! one. So the process executes the calls, injected by ptrace. One `process_madvise` takes 1,024
//! ranges, with a pidfd of the process itself (Linux 6.13). Older kernels refuse that as well, and
//! get one `madvise` for each range.

use std::sync::Arc;

use rustix::io::Errno;
use thiserror::Error;

use crate::address::HostRange;
use crate::errno::check;
use crate::inject::{InjectError, Remote, inject};
use crate::process::Process;

/// Drops also locked pages (`asm-generic/mman-common.h`, Linux 5.18).
const MADV_DONTNEED_LOCKED: u64 = 24;

/// `MADV_DONTNEED`, for older kernels.
const MADV_DONTNEED: u64 = 4;

/// `UIO_MAXIOV`: the most ranges of one `process_madvise`.
const MAX_RANGES: usize = 1024;

/// Bytes that are dropped while a thread is stopped. 1 GiB of 4 KiB pages takes about 0.1 s, and an
/// injection has a time limit of 10 s.
const MAX_BYTES: u64 = 4 << 30;

/// Calls while a thread is stopped.
const MAX_CALLS: usize = 16;

/// Bytes of an entry of the vector: `struct iovec`.
const ENTRY_BYTES: usize = 16;

/// Pages could not be dropped. Some of them may have been.
#[derive(Debug, Error)]
pub enum DropPagesError {
    /// The process could not execute the system calls.
    #[error("dropping pages of the process's memory")]
    Inject(#[from] InjectError),
    /// The kernel refused a range.
    #[error(
        "dropping {range} of the process's memory by madvise (EINVAL: locked memory requires Linux \
         5.18, and so does hugetlb memory)"
    )]
    Refused {
        /// The range.
        range: HostRange,
        /// The error of the system call.
        source: Errno,
    },
}

/// Drops the pages in `ranges` of `process`, locked ones included: private anonymous memory is
/// absent afterwards, and a private mapping of a file has the file's pages again. Takes less than a
/// millisecond for some thousand small ranges. `ranges` must consist of whole pages, of the size
/// that the memory is mapped with. In this process they must be a guest's memory.
///
/// # Errors
///
/// See [`DropPagesError`].
pub fn drop_pages(process: &Arc<Process>, ranges: &[HostRange]) -> Result<(), DropPagesError> {
    if process.pid() == std::process::id() {
        return ranges.iter().try_for_each(|&range| drop_own(range));
    }
    let mut batch = Vec::new();
    let mut bytes = 0;
    for &range in ranges {
        let mut rest = range;
        while rest.len > 0 {
            let len = rest.len.min(MAX_BYTES - bytes);
            batch.push(HostRange::new(rest.addr, len));
            bytes += len;
            if bytes == MAX_BYTES || batch.len() == MAX_RANGES * MAX_CALLS {
                drop_batch(process, std::mem::take(&mut batch))?;
                bytes = 0;
            }
            let Some(next) = rest.addr.checked_add(len) else {
                break;
            };
            rest = HostRange::new(next, rest.len - len);
        }
    }
    if batch.is_empty() {
        return Ok(());
    }
    drop_batch(process, batch)
}

fn drop_batch(process: &Arc<Process>, ranges: Vec<HostRange>) -> Result<(), DropPagesError> {
    inject(
        process,
        move |remote| {
            let mut rest = ranges.as_slice();
            if rest.len() > 1 {
                let dropped = drop_in_vectors(remote, rest)?;
                rest = rest.get(dropped..).unwrap_or_default();
            }
            rest.iter().try_for_each(|&range| drop_range(remote, range))
        },
        drop,
    )
}

/// Drops ranges with `process_madvise`. Returns how many were dropped, from the first on: fewer
/// than all of them if the kernel cannot do that, or refuses a range.
fn drop_in_vectors(remote: &mut Remote, ranges: &[HostRange]) -> Result<usize, InjectError> {
    // The process may have another number in its own namespace.
    let pid = remote.syscall("reading its process ID", libc::SYS_getpid, [0; 6])?;
    let Ok(pid) = pid else { return Ok(0) };
    let opening = "opening a pidfd in it";
    let opened = remote.syscall(opening, libc::SYS_pidfd_open, [pid, 0, 0, 0, 0, 0])?;
    let Ok(pidfd) = opened else { return Ok(0) };
    let dropped = map_and_drop(remote, pidfd, ranges);
    let closed = remote.syscall(
        "closing a pidfd in it",
        libc::SYS_close,
        [pidfd, 0, 0, 0, 0, 0],
    );
    let dropped = dropped?;
    let _ = closed?;
    Ok(dropped)
}

/// Memory of the process for the vector. Its stack is not used: below the stack pointer may be a
/// guard page and other memory behind it, which `/proc/PID/mem` would write.
fn map_and_drop(
    remote: &mut Remote,
    pidfd: u64,
    ranges: &[HostRange],
) -> Result<usize, InjectError> {
    let bytes = (ranges.len().min(MAX_RANGES) * ENTRY_BYTES) as u64;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let arguments = [
        0,
        bytes,
        u64::from(protection.unsigned_abs()),
        u64::from(flags.unsigned_abs()),
        u64::MAX,
        0,
    ];
    let mapped = remote.syscall("mapping memory in it", libc::SYS_mmap, arguments)?;
    let Ok(vector) = mapped else { return Ok(0) };
    let mut dropped = 0;
    let mut failed = None;
    for part in ranges.chunks(MAX_RANGES) {
        match drop_vector(remote, pidfd, vector, part) {
            Ok(count) => dropped += count,
            Err(error) => failed = Some(error),
        }
        if failed.is_some() || dropped % MAX_RANGES != 0 {
            break;
        }
    }
    let unmapping = "unmapping memory in it";
    let unmapped = remote.syscall(unmapping, libc::SYS_munmap, [vector, bytes, 0, 0, 0, 0]);
    if let Some(error) = failed {
        return Err(error);
    }
    let _ = unmapped?;
    Ok(dropped)
}

/// Makes one call for at most [`MAX_RANGES`] ranges. Returns how many were dropped.
fn drop_vector(
    remote: &mut Remote,
    pidfd: u64,
    vector: u64,
    ranges: &[HostRange],
) -> Result<usize, InjectError> {
    let entries: Vec<u8> = ranges
        .iter()
        .flat_map(|range| [range.addr.0.to_ne_bytes(), range.len.to_ne_bytes()])
        .flatten()
        .collect();
    remote.write(vector, &entries)?;
    let arguments = [
        pidfd,
        vector,
        ranges.len() as u64,
        MADV_DONTNEED_LOCKED,
        0,
        0,
    ];
    let advised = remote.syscall("dropping pages of it", libc::SYS_process_madvise, arguments)?;
    // It stops at the first range that it refuses, and returns the bytes before.
    let mut bytes = advised.unwrap_or(0);
    let whole = ranges.iter().take_while(|range| {
        let done = range.len <= bytes;
        bytes = bytes.saturating_sub(range.len);
        done
    });
    Ok(whole.count())
}

/// Drops pages of this process, which a virtual machine monitor that is this program itself has
/// mapped for its guest.
fn drop_own(range: HostRange) -> Result<(), DropPagesError> {
    let refused = |source| DropPagesError::Refused { range, source };
    let at = usize::try_from(range.addr.0).map_err(|_| refused(Errno::INVAL))?;
    let bytes = usize::try_from(range.len).map_err(|_| refused(Errno::INVAL))?;
    let advise = |advice: u64| {
        let advice = i32::try_from(advice).unwrap_or(-1);
        let at = std::ptr::with_exposed_provenance_mut(at);
        // SAFETY: by the contract of `drop_pages`, this is a guest's memory: no Rust object is in
        // it, and its users expect that it changes at any time.
        check(unsafe { libc::madvise(at, bytes, advice) })
    };
    match advise(MADV_DONTNEED_LOCKED) {
        Err(Errno::INVAL) => advise(MADV_DONTNEED),
        advised => advised,
    }
    .map_err(refused)
}

fn drop_range(remote: &mut Remote, range: HostRange) -> Result<(), DropPagesError> {
    let mut advise = |advice| {
        let arguments = [range.addr.0, range.len, advice, 0, 0, 0];
        remote.syscall("dropping pages of it", libc::SYS_madvise, arguments)
    };
    let mut advised = advise(MADV_DONTNEED_LOCKED)?;
    if advised == Err(Errno::INVAL) {
        advised = advise(MADV_DONTNEED)?;
    }
    match advised {
        Ok(_) => Ok(()),
        Err(source) => Err(DropPagesError::Refused { range, source }),
    }
}
