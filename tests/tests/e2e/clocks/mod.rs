//! Guests' clocks: they continue where they were.

mod kvm;
mod linux_guests;
