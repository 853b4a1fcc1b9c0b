//! Moves in each mode, of many kinds of guests.

mod asynchronous_faults;
mod compression;
mod debian;
mod every_mode;
mod kvm;
mod limits;
mod matrix;
mod monitor_reads;
mod named_downtime;
mod paused_guests;
mod qemu_versions;
mod release_before;
mod repeats;
mod untested_qemu;
mod urgent_pages;
