//! The server, over HTTP, with engines that serve real status sockets.

#[path = "../examples/mod.rs"]
mod examples;

mod client;
mod engine;
mod events;
mod http;
mod limits;
mod running_server;
