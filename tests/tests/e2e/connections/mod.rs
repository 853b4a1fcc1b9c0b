//! Connections between two hosts: TLS, and ssh.

mod security;
mod ssh;
