//! Real guests are moved between real QEMUs, and check their memory.
//!
//! All of these tests are one program: beside a long one, others run until none is left.

mod agent;
mod clocks;
mod commands;
mod connections;
mod daemon;
mod dashboard;
mod disks;
mod evacuate;
mod libvirt;
mod memory;
mod modes;
mod network;
mod recovery;
mod refusals;
