//! What threads share is built on these: the standard ones, or loom's when the
//! model tests run.

#[cfg(loom)]
pub(super) use loom::sync::{
    Mutex,
    atomic::{AtomicU64, Ordering, fence},
};
#[cfg(not(loom))]
pub(super) use std::sync::{
    Mutex,
    atomic::{AtomicU64, Ordering, fence},
};
