//! Whether the destination has the same RAM blocks, and which of its options to change if not.

use std::fmt;

use crate::messages::BlockDescription;

/// What differs between the RAM blocks of two guests by name or size. Its text names the first
/// differences, each with the option of the destination's QEMU that decides about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockDifferences(Vec<Difference>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Difference {
    /// A block of the source, and the one at the destination that seems to be meant.
    Name {
        source: String,
        destination: String,
        bytes: u64,
    },
    /// A block that only the source has.
    Missing { id: String, bytes: u64 },
    /// A block that only the destination has.
    Unexpected { id: String, bytes: u64 },
    /// A block of another size.
    Size {
        id: String,
        source_has: u64,
        destination_has: u64,
    },
}

impl BlockDifferences {
    /// How many are in the text.
    const SHOWN: usize = 6;

    /// `None`: the blocks have the same names and sizes.
    pub(super) fn between(
        source: &[BlockDescription],
        destination: &[BlockDescription],
    ) -> Option<Self> {
        let mut found = Vec::new();
        let mut surplus: Vec<_> = destination.iter().collect();
        let mut take = |is_it: &dyn Fn(&BlockDescription) -> bool| {
            let index = surplus.iter().position(|there| is_it(there))?;
            Some(surplus.remove(index))
        };
        // A peer can send two blocks of the same name.
        let same = |block: &&BlockDescription| {
            take(&|there| there.id == block.id && there.bytes == block.bytes).is_none()
        };
        let others: Vec<_> = source.iter().filter(same).collect();
        let sizes: Vec<_> = others
            .into_iter()
            .map(|block| (block, take(&|there| there.id == block.id)))
            .collect();
        for (block, named) in sizes {
            let (id, bytes) = (block.id.clone(), block.bytes);
            found.push(match named {
                Some(there) => Difference::Size {
                    id,
                    source_has: bytes,
                    destination_has: there.bytes,
                },
                None => match take(&|there| is_meant(block, there)) {
                    Some(there) => Difference::Name {
                        source: id,
                        destination: there.id.clone(),
                        bytes,
                    },
                    None => Difference::Missing { id, bytes },
                },
            });
        }
        let surplus = surplus.into_iter().map(|block| Difference::Unexpected {
            id: block.id.clone(),
            bytes: block.bytes,
        });
        found.extend(surplus);
        (!found.is_empty()).then_some(Self(found))
    }
}

/// Whether `there` seems to be the block `source` under another name: memory of the same size that
/// a backend or `-m` makes, or the memory of the same device at another address.
fn is_meant(source: &BlockDescription, there: &BlockDescription) -> bool {
    let (ours, theirs) = (Owner::of_block(&source.id), Owner::of_block(&there.id));
    match (ours, theirs) {
        (Owner::Machine | Owner::Backend, Owner::Machine | Owner::Backend) => {
            source.bytes == there.bytes
        }
        (Owner::Device { memory: ours, .. }, Owner::Device { memory: theirs, .. }) => {
            ours == theirs
        }
        _ => false,
    }
}

/// What a RAM block belongs to, by its name (QEMU's `memory_region_init_ram` and
/// `qemu_ram_set_idstr`: a device's path is put before the name).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner<'a> {
    /// Made by `-m` alone.
    Machine,
    /// A memory backend of this name.
    Backend,
    /// A flash drive.
    Flash,
    /// The firmware's image, and the machine's own ROMs.
    Firmware,
    /// A table that QEMU makes for the firmware.
    Table,
    /// A device at this address; an option ROM is its memory `….rom`.
    Device { address: &'a str, memory: &'a str },
}

impl<'a> Owner<'a> {
    fn of_block(id: &'a str) -> Self {
        match id {
            // `default_ram_id` of the machines.
            "pc.ram" | "microvm.ram" => return Self::Machine,
            "pc.bios" | "pc.rom" | "isa-bios" => return Self::Firmware,
            _ => {}
        }
        if id.starts_with("/rom@") {
            return Self::Table;
        }
        if id.starts_with("system.flash") {
            return Self::Flash;
        }
        match id.split_once('/') {
            // A canonical path is that of a backend.
            None | Some(("", _)) => Self::Backend,
            Some((address, memory)) => Self::Device { address, memory },
        }
    }
}

/// The option that gives the destination the block `id` of the source, with `bytes`.
pub(super) fn advice(id: &str, bytes: u64) -> String {
    let size = size(bytes);
    match Owner::of_block(id) {
        Owner::Machine => format!(
            "start the destination with -m alone, or with -object memory-backend-…,id={id} and \
             -machine memory-backend={id}, of the source's size"
        ),
        Owner::Backend => format!(
            "start the destination with the source's -m, and with -object memory-backend-…,id={id} \
             of {size}"
        ),
        Owner::Flash => "give its pflash drives images of the source's length".to_owned(),
        Owner::Firmware => "give it the same firmware (-bios) and machine type".to_owned(),
        Owner::Table => "start it with the source's machine type, devices and tables (-acpitable, \
                         -smbios)"
            .to_owned(),
        Owner::Device { address, memory } if memory.ends_with(".rom") => format!(
            "give its device at {address} an option ROM of the same length (romfile=, romsize=)"
        ),
        Owner::Device { address, memory } if memory.ends_with("vram") => format!(
            "give it the same display device at {address} (addr=), with {size} of video memory \
             (vgamem_mb=, for qxl ram_size= and vram_size=)"
        ),
        Owner::Device { address, .. } => {
            format!("give it the source's device at {address} (addr=), with the same options")
        }
    }
}

/// The option that removes the block `id` from the destination.
fn removal(id: &str) -> String {
    match Owner::of_block(id) {
        Owner::Machine | Owner::Backend => {
            format!("start the destination without the memory backend {id}")
        }
        Owner::Device { address, .. } => {
            format!("start it without the device at {address}, or with rombar=0 as at the source")
        }
        _ => advice(id, 0),
    }
}

/// Bytes in the largest unit that loses nothing.
fn size(bytes: u64) -> String {
    for (shift, unit) in [(30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if bytes > 0 && bytes.trailing_zeros() >= shift {
            return format!("{} {unit}", bytes >> shift);
        }
    }
    format!("{bytes} bytes")
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name {
                source,
                destination,
                bytes,
            } => write!(
                f,
                "the block {source:?} of {} is named {destination:?} at the destination ({})",
                size(*bytes),
                advice(source, *bytes)
            ),
            Self::Missing { id, bytes } => write!(
                f,
                "the source's block {id:?} of {} is missing at the destination ({})",
                size(*bytes),
                advice(id, *bytes)
            ),
            Self::Unexpected { id, bytes } => write!(
                f,
                "the destination's block {id:?} of {} does not exist at the source ({})",
                size(*bytes),
                removal(id)
            ),
            Self::Size {
                id,
                source_has,
                destination_has,
            } => write!(
                f,
                "the block {id:?} has {} at the source but {} at the destination ({})",
                size(*source_has),
                size(*destination_has),
                advice(id, *source_has)
            ),
        }
    }
}

impl fmt::Display for BlockDifferences {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, difference) in self.0.iter().take(Self::SHOWN).enumerate() {
            let before = if index == 0 { "" } else { "; " };
            write!(f, "{before}{difference}")?;
        }
        match self.0.len().saturating_sub(Self::SHOWN) {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn blocks(all: &[(&str, u64)]) -> Vec<BlockDescription> {
        let block = |(id, bytes): &(&str, u64)| BlockDescription {
            id: (*id).to_owned(),
            bytes: *bytes,
            host_page: 4096,
            guest: Vec::new(),
        };
        all.iter().map(block).collect()
    }

    fn text(source: &[(&str, u64)], destination: &[(&str, u64)]) -> String {
        let found = BlockDifferences::between(&blocks(source), &blocks(destination));
        found.map_or_else(String::new, |found| found.to_string())
    }

    #[test]
    fn equal_blocks_do_not_differ() {
        let all = [("pc.ram", 256 * MIB), ("0000:00:02.0/vga.vram", 16 * MIB)];
        assert_eq!(text(&all, &all), "");
        let reversed = [all[1], all[0]];
        assert_eq!(text(&all, &reversed), "");
        let twice = [("ram", MIB), ("ram", 2 * MIB)];
        assert_eq!(text(&twice, &twice), "");
    }

    #[test]
    fn memory_of_the_same_size_has_another_name() {
        assert_eq!(
            text(&[("pc.ram", 256 * MIB)], &[("ram", 256 * MIB)]),
            "the block \"pc.ram\" of 256 MiB is named \"ram\" at the destination (start the \
             destination with -m alone, or with -object memory-backend-…,id=pc.ram and -machine \
             memory-backend=pc.ram, of the source's size)"
        );
        assert_eq!(
            text(&[("mem0", 1 << 30)], &[("pc.ram", 1 << 30)]),
            "the block \"mem0\" of 1 GiB is named \"pc.ram\" at the destination (start the \
             destination with the source's -m, and with -object memory-backend-…,id=mem0 of 1 GiB)"
        );
    }

    #[test]
    fn memory_of_another_size_is_missing_and_unexpected() {
        assert_eq!(
            text(&[("pc.ram", 256 * MIB)], &[("ram", 128 * MIB)]),
            "the source's block \"pc.ram\" of 256 MiB is missing at the destination (start the \
             destination with -m alone, or with -object memory-backend-…,id=pc.ram and -machine \
             memory-backend=pc.ram, of the source's size); the destination's block \"ram\" of 128 \
             MiB does not exist at the source (start the destination without the memory backend \
             ram)"
        );
    }

    #[test]
    fn the_option_depends_on_what_the_block_belongs_to() {
        for (id, part) in [
            ("pc.ram", "-m alone"),
            ("ram", "id=ram"),
            ("/objects/ram", "id=/objects/ram"),
            ("system.flash0", "pflash"),
            ("pc.bios", "-bios"),
            ("/rom@etc/acpi/tables", "-acpitable"),
            (
                "0000:00:03.0/virtio-net-pci.rom",
                "at 0000:00:03.0 an option ROM",
            ),
            ("0000:00:02.0/vga.vram", "vgamem_mb="),
            ("0000:00:02.0/qxl.vram", "vram_size="),
            ("0000:00:04.0/other", "device at 0000:00:04.0 (addr=)"),
        ] {
            let text = text(&[(id, 2 * MIB)], &[(id, MIB)]);
            assert!(
                text.starts_with(&format!(
                    "the block {id:?} has 2 MiB at the source but 1 MiB at the destination ("
                )),
                "{text}"
            );
            assert!(text.contains(part), "{part:?} is not in {text}");
        }
    }

    #[test]
    fn a_device_at_another_address() {
        let text = text(
            &[("0000:00:02.0/vga.vram", 16 * MIB)],
            &[("0000:00:05.0/vga.vram", 8 * MIB)],
        );
        assert_eq!(
            text,
            "the block \"0000:00:02.0/vga.vram\" of 16 MiB is named \"0000:00:05.0/vga.vram\" at \
             the destination (give it the same display device at 0000:00:02.0 (addr=), with 16 MiB \
             of video memory (vgamem_mb=, for qxl ram_size= and vram_size=))"
        );
    }

    #[test]
    fn only_the_first_are_listed() {
        let names: Vec<_> = (0..20).map(|n| format!("m{n}")).collect();
        let all: Vec<_> = names.iter().map(|name| (name.as_str(), 4097)).collect();
        let text = text(&all, &[]);
        assert!(text.contains("\"m5\" of 4097 bytes"), "{text}");
        assert!(text.ends_with("; and 14 more"), "{text}");
        assert!(text.len() < crate::MAX_TEXT);
    }
}
