//! The content of a checked page, and the random numbers by which pages are chosen.
//!
//! Shared by the program of the Linux test guest, the nano guest's kernel, and the lab, which fills
//! disks with such pages and checks them afterwards. `no_std`, without allocation.
#![no_std]

pub mod page;
pub mod random;
