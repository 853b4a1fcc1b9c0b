//! Peers that violate the protocol: the other side reports what is wrong, within bounds, and its
//! guest is unharmed.

mod connection_flood;
mod destinations;
mod handshake;
mod page_faults;
mod probes;
mod replay;
mod resource_limits;
mod sources;
mod tls;
mod unresponsive;

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use hikkoshi_engine::source::SourceFailure;
use hikkoshi_engine::{Account, MigrateControl, MigrateError, SourceOptions, migrate};
use hikkoshi_link::{Address, HandshakeError, Listener, Remote};
use hikkoshi_pages::RamLayout;
use tempfile::TempDir;

use crate::guests::TestSource;
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

/// Moves `source` right after another connection was closed. The client may see that slightly
/// before the listener can accept the next one.
fn moved_next(
    source: &mut TestSource,
    remote: &Remote,
    control: &MigrateControl,
) -> Result<Account, MigrateError> {
    loop {
        let moved = migrate(source, remote, &SourceOptions::default(), control);
        match moved.as_ref().map_err(|error| &error.cause) {
            Err(SourceFailure::Connect {
                cause: HandshakeError::Closed,
                ..
            }) => thread::sleep(Duration::from_millis(10)),
            _ => return moved,
        }
    }
}
