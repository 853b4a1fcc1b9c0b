//! The dirty log of a hypervisor of one's own.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use error_reporter::Report;
use hikkoshi_dirty::{DirtyError, DirtyLog, RunCoalescer};
use hikkoshi_ept::{Gfn, GfnRange, Guest, HostMemory, LogMethod, Processors, TakeError};
use hikkoshi_pages::{PAGE_BYTES, PageRange, RamLayout};
use thiserror::Error;

/// Pages of the layout that are contiguous guest frames.
#[derive(Clone, Copy, Debug)]
struct Part {
    pages: PageRange,
    first: Gfn,
}

impl Part {
    /// Returns the guest frames of those pages of `range` that are in this part.
    fn frames(&self, range: PageRange) -> GfnRange {
        let range = self.pages.intersect(range);
        let skipped = range
            .start()
            .index()
            .saturating_sub(self.pages.start().index());
        GfnRange::from_len(self.first.plus(skipped), range.len())
    }

    /// Returns the pages of guest frames that are in this part.
    fn pages_of(&self, frames: GfnRange) -> PageRange {
        let skipped = frames.start().index() - self.first.index();
        PageRange::from_len(self.pages.start().saturating_add(skipped), frames.len())
    }
}

/// The dirty log of a guest whose second stage is `hikkoshi-ept`'s, by any of its methods.
///
/// Pages that the hypervisor or an emulated device writes are added by
/// [`Guest::mark_dirty`](hikkoshi_ept::Guest::mark_dirty).
pub struct EptLog<M: HostMemory, P: Processors> {
    guest: Arc<Guest<M>>,
    processors: P,
    /// In the order of their pages.
    parts: Vec<Part>,
    stopped: AtomicBool,
}

/// Why an [`EptLog`] was not started.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StartError {
    /// The layout does not say where pages are mapped in the guest, so their writes would be
    /// missed.
    #[error(
        "starting the dirty log of RAM block {block}: the layout does not say at which guest \
         address its byte {offset:#x} is mapped once"
    )]
    NotMapped {
        /// The name of the block.
        block: String,
        /// The first such byte of the block.
        offset: u64,
    },
    /// Two parts of the layout have the same guest address: a take of one would hide the writes to
    /// the other.
    #[error("starting the dirty log: {one} and {other} are both at guest address {gpa:#x}")]
    SameAddress {
        /// Pages of one part.
        one: PageRange,
        /// Pages of the other part.
        other: PageRange,
        /// The first address that both have.
        gpa: u64,
    },
    /// The second-stage tables refused.
    #[error(transparent)]
    Tables(#[from] hikkoshi_ept::StartError),
}

impl<M: HostMemory, P: Processors> EptLog<M, P> {
    /// Starts logging writes to all pages of `layout` while the guest runs.
    ///
    /// The layout must say where each block is mapped in the guest
    /// ([`RamBlock::guest`](hikkoshi_pages::RamBlock)), each byte exactly once. The log of these
    /// pages must have no other reader; a [`SharedLog`](crate::SharedLog) can have several.
    ///
    /// # Errors
    ///
    /// See [`StartError`]; on an error nothing is logged.
    pub fn start(
        guest: Arc<Guest<M>>,
        processors: P,
        layout: &RamLayout,
        method: LogMethod,
    ) -> Result<Self, StartError> {
        let mut log = Self {
            guest,
            processors,
            parts: Vec::new(),
            stopped: AtomicBool::new(false),
        };
        for part in parts(layout)? {
            // On an error, dropping `log` stops what was started.
            let frames = part.frames(part.pages);
            log.guest.start_log(method, frames, &log.processors)?;
            log.parts.push(part);
        }
        Ok(log)
    }

    /// Returns the parts that have pages of `range`, each with their frames.
    fn frames(&self, range: PageRange) -> impl Iterator<Item = (&Part, GfnRange)> {
        let first = self
            .parts
            .partition_point(|part| part.pages.end() <= range.start());
        let parts = self.parts.get(first..).unwrap_or(&[]).iter();
        parts
            .map(move |part| (part, part.frames(range)))
            .take_while(|(_, frames)| !frames.is_empty())
    }

    fn check_started(&self) -> Result<(), DirtyError> {
        match self.stopped.load(Ordering::Acquire) {
            true => Err(DirtyError::Stopped),
            false => Ok(()),
        }
    }

    fn stop_parts(&self) -> Result<(), DirtyError> {
        if self.stopped.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        for part in &self.parts {
            let frames = part.frames(part.pages);
            if let Err(source) = self.guest.stop_log(frames, &self.processors) {
                // The caller can try again.
                self.stopped.store(false, Ordering::Release);
                return Err(DirtyError::Other(Box::new(source)));
            }
        }
        Ok(())
    }
}

impl<M, P> DirtyLog for EptLog<M, P>
where
    M: HostMemory + Send + Sync,
    P: Processors + Send + Sync,
{
    fn take(&self, range: PageRange, dirty: &mut dyn FnMut(PageRange)) -> Result<(), DirtyError> {
        self.check_started()?;
        let mut runs = RunCoalescer::new(dirty);
        for (part, frames) in self.frames(range) {
            // Reported when the take has returned: only then do all processors log the next write.
            let mut taken = Vec::new();
            self.guest
                .take_log(frames, &self.processors, &mut |run| taken.push(run))
                .map_err(|TakeError::Off| DirtyError::Stopped)?;
            for run in taken {
                runs.push(part.pages_of(run));
            }
        }
        Ok(())
    }

    fn peek(&self, range: PageRange, dirty: &mut dyn FnMut(PageRange)) -> Result<(), DirtyError> {
        self.check_started()?;
        let mut runs = RunCoalescer::new(dirty);
        for (part, frames) in self.frames(range) {
            let mut note = |run| runs.push(part.pages_of(run));
            self.guest
                .peek_log(frames, &self.processors, &mut note)
                .map_err(|TakeError::Off| DirtyError::Stopped)?;
        }
        Ok(())
    }

    fn stop(&self) -> Result<(), DirtyError> {
        self.stop_parts()
    }
}

impl<M: HostMemory, P: Processors> Drop for EptLog<M, P> {
    fn drop(&mut self) {
        if let Err(error) = self.stop_parts() {
            tracing::warn!(error = %Report::new(&error), "cannot stop the dirty log");
        }
    }
}

impl<M: HostMemory, P: Processors> fmt::Debug for EptLog<M, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EptLog")
            .field("guest", &self.guest)
            .field("parts", &self.parts)
            .field("stopped", &self.stopped)
            .finish_non_exhaustive()
    }
}

/// Returns where the pages of each block are mapped in the guest.
fn parts(layout: &RamLayout) -> Result<Vec<Part>, StartError> {
    let mut parts = Vec::new();
    for (block, pages) in layout.blocks() {
        let mut mapped = block.guest.clone();
        mapped.retain(|range| range.bytes > 0);
        mapped.sort_unstable_by_key(|range| range.offset);
        let mut end = 0;
        for range in mapped {
            let whole = [range.offset, range.bytes, range.gpa];
            if range.offset != end || whole.iter().any(|value| !value.is_multiple_of(PAGE_BYTES)) {
                break;
            }
            let first = pages.start().saturating_add(range.offset / PAGE_BYTES);
            parts.push(Part {
                pages: PageRange::from_len(first, range.bytes / PAGE_BYTES),
                first: Gfn::containing(range.gpa),
            });
            end = end.saturating_add(range.bytes);
        }
        if end != block.bytes {
            return Err(StartError::NotMapped {
                block: block.id.clone(),
                offset: end,
            });
        }
    }
    let mut by_address = parts.clone();
    by_address.sort_unstable_by_key(|part| part.first);
    for (one, other) in by_address.iter().zip(by_address.iter().skip(1)) {
        if one.frames(one.pages).contains(other.first) {
            return Err(StartError::SameAddress {
                one: one.pages,
                other: other.pages,
                gpa: other.first.address(),
            });
        }
    }
    Ok(parts)
}
