//! Loom models: interleavings of vCPUs with operations on their tables, up to a bound of
//! preemptions. Run them with `make test-loom`. In the models, tables and page-modification logs
//! have two entries.
//!
//! The invariant of all models: a migration that copies the pages reported by each take after it
//! has returned, and once more after the vCPUs have stopped, has everything that the guest wrote.
#![cfg(loom)]
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

mod nested_views;
mod start_stop;
mod take_vs_tables;
mod take_vs_write;
mod unmap_merge;
mod world;
