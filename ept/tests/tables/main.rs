//! Tables on the software processor: mapping, splitting and merging, views, ageing, errors.
#![cfg(not(loom))]
// Helpers outside the test functions: an unwrap that fails is a test failure too.
#![allow(clippy::unwrap_used)]

mod ageing;
mod common;
mod mapping;
mod split_merge;
mod testing_cpu;
mod views;
