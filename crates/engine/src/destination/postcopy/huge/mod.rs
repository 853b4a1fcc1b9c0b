//! Huge host pages: assembled from 4 KiB pages, requested a bounded number at a time, rebuilt.

pub(crate) mod admission;
pub(crate) mod collapse;
#[cfg(test)]
#[cfg(not(loom))]
mod gigantic_page_tests;
pub(crate) mod slots;
pub(crate) mod staging;

use std::sync::Arc;

use hikkoshi_pages::{PageRange, RamLayout};

use crate::destination::error::DestinationFailure;
use crate::destination::postcopy::huge::admission::{Admission, AdmissionEventFd};
use crate::destination::postcopy::huge::staging::{Size, Staging};

/// The huge pages of a guest, by size.
#[derive(Debug)]
pub(crate) struct HugePages {
    sizes: Vec<HugeSize>,
    event: Arc<AdmissionEventFd>,
}

/// Huge pages of one size.
#[derive(Debug)]
pub(crate) struct HugeSize {
    /// Bytes in a host page.
    bytes: u64,
    /// Where they are assembled.
    pub(crate) staging: Staging,
    /// Which of them may be requested.
    pub(crate) admission: Admission,
}

impl HugePages {
    /// Buffers for the huge pages of `layout`, with a source that sends over `links` background
    /// links.
    pub(crate) fn new(layout: &RamLayout, links: u16) -> Result<Self, DestinationFailure> {
        let event = Arc::new(AdmissionEventFd::new().map_err(DestinationFailure::Thread)?);
        let sizes = Size::all(layout, links)
            .into_iter()
            .map(|size| {
                let staging = Staging::new(size).map_err(|cause| DestinationFailure::Staging {
                    bytes: size.bytes(),
                    cause: cause.into(),
                })?;
                let most = usize::try_from(size.requested).unwrap_or(1);
                Ok(HugeSize {
                    bytes: size.host_page,
                    staging,
                    admission: Admission::new(most, Arc::clone(&event)),
                })
            })
            .collect::<Result<_, DestinationFailure>>()?;
        Ok(Self { sizes, event })
    }

    /// Readable when a huge page may have been admitted.
    pub(crate) fn event(&self) -> &AdmissionEventFd {
        &self.event
    }

    /// The size that a host page has, if it is a huge page.
    pub(crate) fn size_of(&self, host_page: PageRange) -> Option<&HugeSize> {
        let bytes = host_page.bytes();
        self.sizes.iter().find(|size| size.bytes == bytes)
    }

    /// All sizes.
    pub(crate) fn sizes(&self) -> impl Iterator<Item = &HugeSize> {
        self.sizes.iter()
    }

    /// Drops all partly assembled huge pages: their pieces are sent again. No page may be received
    /// meanwhile.
    pub(crate) fn drop_pieces(&self) {
        for size in &self.sizes {
            size.staging.drop_all();
        }
    }
}
