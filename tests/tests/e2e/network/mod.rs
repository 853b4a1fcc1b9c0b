//! What the clients of a guest notice of its move.

mod frames;
mod guests;
mod nano_server;
mod passt;
