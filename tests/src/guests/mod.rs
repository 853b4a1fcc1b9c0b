//! Guests: their memory, disks and clocks, and a client of redis.

pub(crate) mod disk;
pub(crate) mod guest;
pub(crate) mod guest_clock;
pub(crate) mod redis;
