//! A KVM monitor on rust-vmm's crates that moves its guests by the engine.
//!
//! [`embedding`] is what the author of a monitor writes, and `docs/embedding.md` leads through it.
//! [`monitor`] is the monitor that it is written for: read it only for what `embedding` calls.
//!
//! The program ([`moves`] and [`check`]) moves a guest between two machines of this process by each
//! mode and with each dirty log, and prints a table. Before each move a destination refuses the
//! guest, which then must continue at the source. The guest is the nano guest of `guest/nano`: it
//! writes and checks its memory, and must report where it arrives that every page is right. Its
//! clock must not have gone back.
//!
//! It needs `/dev/kvm`, Linux 6.7, and the right to handle the kernel's page faults by userfaultfd
//! (root, `vm.unprivileged_userfaultfd=1`, or access to `/dev/userfaultfd`):
//!
//! ```text
//! make guest
//! cargo run --release --package hikkoshi-vmm -- build/nano/x86_64-unknown-linux-gnu/release/nano
//! ```

mod check;
mod embedding;
mod monitor;
mod moves;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn main() -> Result<()> {
    let kernel = std::env::args_os().nth(1);
    let kernel = kernel.ok_or("usage: hikkoshi-vmm KERNEL (an ELF file with a PVH entry)")?;
    moves::move_by_each_mode(kernel.as_ref())
}
