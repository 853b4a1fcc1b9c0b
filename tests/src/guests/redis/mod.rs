//! A client of the Debian guest's redis that checks every answer.

mod client;
mod load;

pub use load::RedisLoad;
