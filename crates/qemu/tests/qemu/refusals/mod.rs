//! Tests that guests which cannot be moved are refused with the reason and stay
//! unchanged, with real QEMUs.

mod access;
mod devices;
mod memory;
mod other_migration;
mod space;

use std::path::Path;

use hikkoshi_qemu::{AttachError, QemuSource};

use crate::support::{Program, Qemu, RamPath, eventually, options, says};

/// Checks that the source is refused with a message that contains all of `parts`, and
/// that QEMU is unchanged.
fn refused(qemu: &Qemu, parts: &[&str]) -> AttachError {
    let before = (qemu.traces(), qemu.state());
    let error = QemuSource::attach(&qemu.qmp()).unwrap_err();
    eprintln!("   {}", says(&error, parts));
    eventually("QEMU is unchanged", || {
        (qemu.traces(), qemu.state()) == before
    });
    error
}

fn start(program: &Program, line: &str) -> Qemu {
    Qemu::start(program, RamPath::new(), &options(line))
}

/// The options of a guest whose memory is a file in `folder`.
fn memory_in(folder: &Path, share: &str) -> String {
    format!(
        "-m 32 -machine q35,memory-backend=ram \
         -object memory-backend-file,id=ram,size=32M,mem-path={}/ram,share={share}",
        folder.display()
    )
}
