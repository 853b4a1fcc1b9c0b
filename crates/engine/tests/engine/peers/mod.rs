//! Peers that do not do what they should: the other side says what is wrong,
//! within bounds, and its guest is none the worse for it.

mod deaf;
mod destinations;
mod door;
mod faults;
mod greedy;
mod replay;
mod sources;
mod strangers;
mod tls;

use std::sync::Arc;

use hikkoshi_engine::link::{Address, Listener};
use hikkoshi_pages::RamLayout;
use tempfile::TempDir;

use crate::machine::{Machine, Side};
use crate::memory::Memory;

fn listen(folder: &TempDir) -> Listener {
    let path = folder.path().join("listen");
    Listener::bind(&Address::Unix(path)).unwrap()
}

fn machine(source: &RamLayout, destination: &RamLayout) -> Arc<Machine> {
    let memories = [source, destination].map(|layout| Arc::new(Memory::new(layout)));
    let machine = Arc::new(Machine::new(&memories[0], &memories[1]));
    machine.run(Side::Source);
    machine
}
