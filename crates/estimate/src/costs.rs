//! What cannot be measured without moving the guest.
//!
//! The source of a constant is the bench (`docs/assets/benchmarks/measured.md`: 2 cores AMD EPYC,
//! Linux 6.18, QEMU 10.0, revision 3fc5a56), unless another one is named.

use crate::span::Span;

/// Bytes of a page on a background link: its content, and its part of a frame's header. Headers of
/// 24 bytes are for 1 to 256 pages.
pub(crate) const PAGE_BYTES: f64 = 4096.0;
/// The header of a frame with a single page.
pub(crate) const HEADER_BYTES: f64 = 24.0;

/// What a page takes longer in post-copy than in pre-copy, s: it is sent in pieces of at most 32
/// KiB and installed by `UFFDIO_COPY`. At 10 Gbit/s the background reaches 783 MB/s in post-copy,
/// and 992 MB/s in pre-copy: 1.1 µs. On 2 cores Intel Xeon (`make bench ARGS="--only estimate"`) it
/// is 0.6 µs.
pub(crate) const INSTALL_PAGE: f64 = 0.6e-6;

/// What a page takes the processors to send and receive in post-copy, s, without reading it: 783 to
/// 850 MB/s on a fast line.
pub(crate) const SEND_PAGE: f64 = 4.7e-6;

/// The part of a line's rate that background pages reach in post-copy: 95 % at 1 Gbit/s.
pub(crate) const POSTCOPY_SHARE: f64 = 0.96;

/// What a scattered page takes longer than one in a run of many, s: a read of its own, and a copy
/// into a batch (`docs/decisions/0003-batch-scattered-dirty-pages.md`).
pub(crate) const SCATTERED_PAGE: f64 = 0.8e-6;

/// What a page fault takes beyond the round trip and [`FAULT_PAGES`], s: 45 to 50 µs of a mean of
/// 69 to 74 µs on the loopback device. On 2 cores Intel Xeon (`make bench ARGS="--only estimate"`)
/// it is 20 to 40 µs.
pub(crate) const FAULT: Span = Span {
    low: 20e-6,
    likely: 28e-6,
    high: 50e-6,
};

/// Pages that the line carries from a request to its answer: the answer, and what was on its way
/// before it. The mean latency is 98 µs at 1 Gbit/s, and 370 µs at 200 Mbit/s.
pub(crate) const FAULT_PAGES: f64 = 2.0;

/// How much of the background's time a fault takes, s. Background pages wait while a request is
/// unanswered, and a request brings pages around it. On the loopback device of the bench, a guest
/// that writes at random at full speed has 27,000 faults, and its 179,000 pages take 1.6 s longer
/// than those of a quiet guest: 60 µs. Of guests with 1,000 faults in a third of a second the pages
/// do not take measurably longer (`make bench ARGS="--only estimate"`).
pub(crate) const FAULT_STOPS_BACKGROUND: Span = Span {
    low: 0.0,
    likely: 15e-6,
    high: 60e-6,
};

/// The part of the time that the background gets, however many faults there are.
pub(crate) const LEAST_BACKGROUND: f64 = 0.25;

/// What a page takes the processors to send and receive in pre-copy, s, without reading it: 992
/// MB/s at 10 Gbit/s.
pub(crate) const PRECOPY_PAGE: f64 = 3.7e-6;
