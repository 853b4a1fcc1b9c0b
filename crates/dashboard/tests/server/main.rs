//! The server, over HTTP, with engines that serve real status sockets.
#![allow(clippy::unwrap_used, clippy::expect_used)] // a test's failure is the message

#[path = "../examples/mod.rs"]
mod examples;

mod client;
mod engine;
mod events;
mod http;
mod limits;
mod running_server;
