//! What is known about the guest and the line.

use std::time::Duration;

use hikkoshi_wire::CompressionMethod;

use crate::costs::PAGE_BYTES;
use crate::float::float;
use crate::span::Span;
use crate::working_set::WorkingSet;

/// The guest, as measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Guest {
    /// All pages of its memory.
    pub pages: u64,
    /// Pages with content: these are sent.
    pub data_pages: Span,
    /// Pages that are allocated on the host and hold only zeros: these are read, and only marked.
    pub zero_pages: Span,
    /// What it writes.
    pub working_set: WorkingSet,
    /// Its virtual processors.
    pub vcpus: u32,
    /// The number of its devices.
    pub devices: u32,
    /// The number of its disks, whose images are opened at the destination in the pause.
    pub disks: u32,
    /// What the first write to a page after a take of the dirty log costs it.
    pub write_fault: Duration,
    /// How long reading one page of it takes, with the test for zeros, in seconds.
    pub read_page: f64,
    /// Whether its disks are drained in each round.
    pub drains: bool,
    /// What becomes of background pages, if they are compressed.
    pub compression: Option<CompressedPages>,
}

/// What a method makes of the guest's content, as measured on a sample of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CompressedPages {
    /// The method.
    pub method: CompressionMethod,
    /// What becomes of a page, in bytes.
    pub page_bytes: f64,
    /// How long compressing a page takes, in seconds.
    pub page_seconds: f64,
    /// Bytes of pages that are sent before the engine compresses.
    pub sent_before: f64,
}

impl CompressedPages {
    /// A sample of `content` bytes has become `compressed` bytes in so many seconds.
    #[must_use]
    pub fn of_sample(
        method: CompressionMethod,
        content: u64,
        compressed: u64,
        seconds: f64,
    ) -> Self {
        let pages = float(content.max(1)) / PAGE_BYTES;
        Self {
            method,
            page_bytes: float(compressed) / pages,
            page_seconds: seconds / pages,
            sent_before: 0.0,
        }
    }
}

/// The line between the hosts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Line {
    /// What all background links together carry in pre-copy, in bytes a second, with the time that
    /// both hosts' processors take.
    pub rate: Span,
    /// The time from a message to its answer, in seconds.
    pub round_trip: Span,
    /// The time to open a link, in seconds.
    pub open_link: Span,
}
