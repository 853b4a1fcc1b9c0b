//! From the BIOS to 64-bit code: real mode, protected mode, long mode.

mod long;
mod sector;
mod stage2;
