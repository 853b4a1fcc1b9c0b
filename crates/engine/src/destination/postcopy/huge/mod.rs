//! Huge host pages: assembled from 4 KiB pages, requested a bounded number at a time, rebuilt.

pub(crate) mod admission;
pub(crate) mod collapse;
#[cfg(test)]
#[cfg(not(loom))]
mod gigantic_page_tests;
pub(crate) mod slots;
pub(crate) mod staging;
