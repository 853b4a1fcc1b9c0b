//! The results of a measurement, compared with sets of pages.
#![allow(clippy::unwrap_used)] // a test's failure is the message

mod measuring;
mod naive_model;

use hikkoshi_pages::{RamBlock, RamLayout};

/// Blocks with these numbers of pages.
fn layout(pages: &[u64]) -> RamLayout {
    let blocks = pages
        .iter()
        .enumerate()
        .map(|(number, pages)| RamBlock::new(format!("block{number}"), pages << 12, 4096));
    RamLayout::new(blocks.collect()).unwrap()
}

/// Whether two numbers are equal but for rounding.
fn equal(one: f64, other: f64) -> bool {
    (one - other).abs() <= 1e-9 * one.abs().max(1.0)
}
