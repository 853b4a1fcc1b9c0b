//! Everything that is tested with real QEMUs. It is one program, so that it is linked once.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A failure is the message.
#![allow(clippy::print_stdout, clippy::print_stderr)] // What was measured, and what QEMU said.

mod attach;
mod disks;
mod drain;
mod images;
mod machines;
mod move_lock;
mod piped;
mod processors;
mod refusals;
mod starting;
mod streams;
mod support;
mod switchover;
mod undo;
mod writers;
