//! Tables.
#![cfg(not(loom))]
// Helpers outside the test functions: their failure is the message too.
#![allow(clippy::unwrap_used)]

mod ageing;
mod common;
mod mapping;
mod split_merge;
mod testing_cpu;
mod views;
