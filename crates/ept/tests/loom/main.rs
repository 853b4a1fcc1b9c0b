//! Every interleaving of virtual processors and those who work on their tables, up to a bound of forced
//! switches: `make test-loom`. Tables have two entries here, and page-modification logs too.
//!
//! The invariant of all models: whoever copies the pages that a take reports, once the take has
//! returned, and does so once more when the virtual processors have stopped, holds what the guest wrote.
#![cfg(loom)]
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

mod nested_views;
mod start_stop;
mod take_vs_tables;
mod take_vs_write;
mod unmap_merge;
mod world;
