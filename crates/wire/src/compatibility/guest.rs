//! Whether the destination has the same machine type and RAM blocks.

use std::fmt;

use thiserror::Error;

use super::blocks::BlockDifferences;
use crate::messages::{BlockDescription, GuestDescription, GuestRangeDescription};

impl GuestDescription {
    /// Everything for which the source's guest, this one, cannot continue in `destination`.
    ///
    /// Everything that the guest can notice must be the same: the machine, the
    /// number of CPUs, and each RAM block's size and guest addresses. (The CPUs'
    /// features are in [`Processors`](crate::Processors).) The blocks must be in
    /// the same order, because page numbers depend on it. The hypervisor must be
    /// the same program, but may have another version: it guarantees
    /// compatibility by the versioned machine type. Host pages may differ.
    /// `running` is not compared.
    pub fn differences(&self, destination: &Self) -> Vec<Mismatch> {
        let (ours, theirs) = (program(&self.hypervisor), program(&destination.hypervisor));
        let hypervisor = (ours != theirs).then(|| Mismatch::Hypervisor {
            source_has: self.hypervisor.clone(),
            destination_has: destination.hypervisor.clone(),
        });
        let architecture = same(
            "architecture",
            &self.architecture,
            &destination.architecture,
        );
        let cpus = same(
            "number of virtual CPUs",
            &self.cpus.to_string(),
            &destination.cpus.to_string(),
        );
        [
            architecture.err(),
            hypervisor,
            same("machine type", &self.machine, &destination.machine).err(),
            cpus.err(),
            same_blocks(&self.blocks, &destination.blocks).err(),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

fn same(what: &'static str, source: &str, destination: &str) -> Result<(), Mismatch> {
    if source == destination {
        return Ok(());
    }
    Err(Mismatch::Setting {
        what,
        source_has: source.to_owned(),
        destination_has: destination.to_owned(),
    })
}

/// The name before the version.
fn program(hypervisor: &str) -> &str {
    hypervisor.split(' ').next().unwrap_or_default()
}

fn same_blocks(
    source: &[BlockDescription],
    destination: &[BlockDescription],
) -> Result<(), Mismatch> {
    let names = |blocks: &[BlockDescription]| BlockNames::new(blocks);
    if let Some(differences) = BlockDifferences::between(source, destination) {
        return Err(Mismatch::Blocks(differences));
    }
    let order = |blocks: &[BlockDescription]| -> Vec<String> {
        blocks.iter().map(|block| block.id.clone()).collect()
    };
    if order(source) != order(destination) {
        return Err(Mismatch::BlockOrder {
            source_has: names(source),
            destination_has: names(destination),
        });
    }
    source
        .iter()
        .zip(destination)
        .try_for_each(|(source, destination)| same_block(source, destination))
}

fn same_block(source: &BlockDescription, destination: &BlockDescription) -> Result<(), Mismatch> {
    let (ours, theirs) = (pieces(&source.guest), pieces(&destination.guest));
    if ours == theirs {
        return Ok(());
    }
    // The first piece that only one of them has.
    let only = |these: &[GuestRangeDescription], those: &[GuestRangeDescription]| {
        these
            .iter()
            .find(|piece| !those.contains(piece))
            .map_or_else(|| "nothing else".to_owned(), piece_text)
    };
    Err(Mismatch::GuestAddress {
        id: source.id.clone(),
        source_has: only(&ours, &theirs),
        destination_has: only(&theirs, &ours),
    })
}

fn piece_text(piece: &GuestRangeDescription) -> String {
    format!(
        "{} bytes from offset {:#x} on at guest address {:#x}",
        piece.bytes, piece.offset, piece.gpa
    )
}

/// The pieces by guest address, with adjacent pieces joined: a hypervisor may
/// split a range that the guest sees as one.
fn pieces(guest: &[GuestRangeDescription]) -> Vec<GuestRangeDescription> {
    let mut sorted = guest.to_vec();
    sorted.sort_by_key(|piece| (piece.gpa, piece.offset));
    let mut joined: Vec<GuestRangeDescription> = Vec::with_capacity(sorted.len());
    for piece in sorted {
        match joined.last_mut() {
            Some(last)
                if last.gpa.checked_add(last.bytes) == Some(piece.gpa)
                    && last.offset.checked_add(last.bytes) == Some(piece.offset)
                    && last.bytes.checked_add(piece.bytes).is_some() =>
            {
                last.bytes += piece.bytes;
            }
            _ => joined.push(piece),
        }
    }
    joined
}

/// Names of RAM blocks for a message: the first 8, and the number of the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockNames(Vec<String>, usize);

impl BlockNames {
    const SHOWN: usize = 8;

    fn new(blocks: &[BlockDescription]) -> Self {
        let shown = blocks.iter().take(Self::SHOWN);
        Self(
            shown.map(|block| block.id.clone()).collect(),
            blocks.len().saturating_sub(Self::SHOWN),
        )
    }
}

impl fmt::Display for BlockNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none");
        }
        f.write_str(&self.0.join(", "))?;
        match self.1 {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

/// A difference at the destination. Its message gives both values and what to do.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Mismatch {
    /// A setting of the machine.
    #[error(
        "comparing the two guests: the {what} is {source_has:?} at the source but {destination_has:?} at the destination; start the destination with the source's setting"
    )]
    Setting {
        /// The setting.
        what: &'static str,
        /// Its value at the source.
        source_has: String,
        /// Its value at the destination.
        destination_has: String,
    },
    /// Different programs.
    #[error(
        "comparing the two guests: the source runs {source_has:?}, the destination {destination_has:?}; a guest can only move between versions of the same hypervisor"
    )]
    Hypervisor {
        /// The program and version at the source.
        source_has: String,
        /// The program and version at the destination.
        destination_has: String,
    },
    /// RAM blocks of other names or sizes.
    #[error("comparing the two guests: their RAM blocks differ: {0}")]
    Blocks(BlockDifferences),
    /// RAM blocks in another order.
    #[error(
        "comparing the two guests: the RAM blocks come in the order {source_has} at the source but {destination_has} at the destination; give the memory backends in the same order"
    )]
    BlockOrder {
        /// The source's order.
        source_has: BlockNames,
        /// The destination's order.
        destination_has: BlockNames,
    },
    /// A block at another guest address.
    #[error(
        "comparing the two guests: of RAM block {id:?} the guest sees {source_has} at the source but {destination_has} at the destination; start the destination with the same machine and memory options"
    )]
    GuestAddress {
        /// The block.
        id: String,
        /// The piece that only the source has.
        source_has: String,
        /// The piece that only the destination has.
        destination_has: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(gpa: u64, offset: u64, bytes: u64) -> GuestRangeDescription {
        GuestRangeDescription { gpa, offset, bytes }
    }

    fn block(id: &str, bytes: u64) -> BlockDescription {
        BlockDescription {
            id: id.to_owned(),
            bytes,
            host_page: 4096,
            guest: vec![piece(0, 0, bytes)],
        }
    }

    fn guest() -> GuestDescription {
        GuestDescription {
            machine: "pc-q35-7.2".into(),
            architecture: "x86_64".into(),
            cpus: 2,
            cpu_model: "qemu64".into(),
            hypervisor: "QEMU 7.2.22".into(),
            running: true,
            blocks: vec![block("ram", 1 << 30), block("dimm0", 1 << 20)],
        }
    }

    fn changed(change: impl FnOnce(&mut GuestDescription)) -> GuestDescription {
        let mut guest = guest();
        change(&mut guest);
        guest
    }

    #[test]
    fn what_the_guest_cannot_notice_may_differ() {
        for other in [
            guest(),
            changed(|guest| guest.running = false),
            changed(|guest| guest.hypervisor = "QEMU 10.0.2".into()),
            changed(|guest| guest.blocks[0].host_page = 2 << 20),
            // The same addresses, split and ordered differently.
            changed(|guest| {
                let half = 1 << 29;
                guest.blocks[0].guest = vec![piece(half, half, half), piece(0, 0, half)];
            }),
        ] {
            assert_eq!(guest().differences(&other), []);
            assert_eq!(other.differences(&guest()), []);
        }
    }

    #[test]
    fn every_difference_is_named_with_both_values_and_what_to_do() {
        let text = |change: fn(&mut GuestDescription)| {
            let found = guest().differences(&changed(change));
            assert_eq!(found.len(), 1, "{found:?}");
            let text = found[0].to_string();
            text.strip_prefix("comparing the two guests: ")
                .unwrap()
                .to_owned()
        };
        assert_eq!(
            text(|guest| guest.architecture = "aarch64".into()),
            "the architecture is \"x86_64\" at the source but \"aarch64\" at the destination; \
             start the destination with the source's setting"
        );
        assert_eq!(
            text(|guest| guest.machine = "pc-q35-10.0".into()),
            "the machine type is \"pc-q35-7.2\" at the source but \"pc-q35-10.0\" at the \
             destination; start the destination with the source's setting"
        );
        assert_eq!(
            text(|guest| guest.cpus = 4),
            "the number of virtual CPUs is \"2\" at the source but \"4\" at the destination; \
             start the destination with the source's setting"
        );
        assert_eq!(
            text(|guest| guest.hypervisor = "Firecracker 1.9".into()),
            "the source runs \"QEMU 7.2.22\", the destination \"Firecracker 1.9\"; a guest can \
             only move between versions of the same hypervisor"
        );
        assert_eq!(
            text(|guest| drop(guest.blocks.pop())),
            "their RAM blocks differ: the source's block \"dimm0\" of 1 MiB is missing at the \
             destination (start the destination with the source's -m, and with -object \
             memory-backend-…,id=dimm0 of 1 MiB)"
        );
        assert_eq!(
            text(|guest| guest.blocks.reverse()),
            "the RAM blocks come in the order ram, dimm0 at the source but dimm0, ram at the \
             destination; give the memory backends in the same order"
        );
        assert_eq!(
            text(|guest| guest.blocks[0].guest = vec![piece(1 << 32, 0, 1 << 30)]),
            "of RAM block \"ram\" the guest sees 1073741824 bytes from offset 0x0 on at guest \
             address 0x0 at the source but 1073741824 bytes from offset 0x0 on at guest address \
             0x100000000 at the destination; start the destination with the same machine and \
             memory options"
        );
    }

    #[test]
    fn all_differences_are_found() {
        let other = changed(|guest| {
            guest.cpus = 4;
            guest.blocks[0].id = "pc.ram".into();
            guest.machine = "pc-q35-10.0".into();
        });
        let found = guest().differences(&other);
        let texts: Vec<_> = found.iter().map(ToString::to_string).collect();
        for (text, part) in texts
            .iter()
            .zip(["machine type", "CPUs", "named \"pc.ram\""])
        {
            assert!(text.contains(part), "{part:?} is not in: {text}");
        }
        assert_eq!(texts.len(), 3, "{texts:?}");
    }

    #[test]
    fn an_additional_piece_is_a_difference() {
        let more = changed(|guest| guest.blocks[0].guest.push(piece(1 << 40, 0, 4096)));
        let found = guest().differences(&more);
        assert!(
            found[0]
                .to_string()
                .contains("sees nothing else at the source but 4096 bytes")
        );
    }

    #[test]
    fn only_the_first_names_are_listed() {
        let blocks: Vec<_> = (0..20).map(|n| block(&format!("m{n}"), 4096)).collect();
        assert_eq!(
            BlockNames::new(&blocks).to_string(),
            "m0, m1, m2, m3, m4, m5, m6, m7 and 12 more"
        );
    }
}
