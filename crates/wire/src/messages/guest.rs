//! A guest, as described to the other side.
//!
//! These types are what is sent, and must not change. The run-time types
//! ([`RamLayout`] and its parts) may.

use hikkoshi_pages::{GuestRange, LayoutError, MAX_BLOCKS, MAX_GUEST_RANGES, RamBlock, RamLayout};
use serde::{Deserialize, Serialize};

use super::bounded::{List, Name};

/// A guest's description: enough to decide whether it can run at the
/// destination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestDescription {
    /// The versioned machine type: `pc-q35-7.2`, never an alias like `q35`,
    /// whose meaning changes with each release.
    #[serde(with = "Name")]
    pub machine: String,
    /// The guest's instruction set: `x86_64`.
    #[serde(with = "Name")]
    pub architecture: String,
    /// The number of virtual CPUs.
    pub cpus: u32,
    /// The model of the virtual CPUs, for people. Their features are in
    /// [`Processors`](crate::Processors).
    #[serde(with = "Name")]
    pub cpu_model: String,
    /// The hypervisor: a name, a space, a version, as in `QEMU 10.0.2`.
    #[serde(with = "Name")]
    pub hypervisor: String,
    /// Whether it runs at the source: a guest that was paused before the
    /// migration stays paused.
    pub running: bool,
    /// Its RAM blocks, in layout order.
    #[serde(with = "List::<MAX_BLOCKS>")]
    pub blocks: Vec<BlockDescription>,
}

/// A RAM block; the sent form of [`RamBlock`], which explains the fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockDescription {
    /// Its name.
    #[serde(with = "Name")]
    pub id: String,
    /// Its length in bytes.
    pub bytes: u64,
    /// Its host page size in bytes. May differ between the two sides.
    pub host_page: u64,
    /// Its addresses in the guest.
    #[serde(with = "List::<MAX_GUEST_RANGES>")]
    pub guest: Vec<GuestRangeDescription>,
}

/// A piece of a RAM block; the sent form of [`GuestRange`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestRangeDescription {
    /// The guest physical address.
    pub gpa: u64,
    /// The offset in the block, in bytes.
    pub offset: u64,
    /// The length in bytes.
    pub bytes: u64,
}

impl GuestDescription {
    /// Returns the sent form of a layout, for [`blocks`](Self::blocks).
    #[must_use]
    pub fn describe_blocks(layout: &RamLayout) -> Vec<BlockDescription> {
        layout
            .blocks()
            .map(|(block, _)| BlockDescription::from(block))
            .collect()
    }

    /// Returns the layout of the blocks.
    ///
    /// # Errors
    ///
    /// If the blocks are invalid: a peer's blocks are checked like our own.
    pub fn layout(&self) -> Result<RamLayout, LayoutError> {
        RamLayout::new(self.blocks.iter().map(RamBlock::from).collect())
    }
}

impl From<&RamBlock> for BlockDescription {
    fn from(block: &RamBlock) -> Self {
        Self {
            id: block.id.clone(),
            bytes: block.bytes,
            host_page: block.host_page,
            guest: block
                .guest
                .iter()
                .map(|piece| GuestRangeDescription {
                    gpa: piece.gpa,
                    offset: piece.offset,
                    bytes: piece.bytes,
                })
                .collect(),
        }
    }
}

impl From<&BlockDescription> for RamBlock {
    fn from(block: &BlockDescription) -> Self {
        Self {
            id: block.id.clone(),
            bytes: block.bytes,
            host_page: block.host_page,
            guest: block
                .guest
                .iter()
                .map(|piece| GuestRange {
                    gpa: piece.gpa,
                    offset: piece.offset,
                    bytes: piece.bytes,
                })
                .collect(),
        }
    }
}
