//! A guest as it is described to the other side.
//!
//! These types are what is sent. The run-time ones ([`RamLayout`] and its
//! parts) may change; these may not.

use hikkoshi_pages::{GuestRange, LayoutError, MAX_BLOCKS, MAX_GUEST_RANGES, RamBlock, RamLayout};
use serde::{Deserialize, Serialize};

use super::bounded::{List, Name};

/// What a guest is: enough to tell whether another host has a place for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestDescription {
    /// The versioned machine type: `pc-q35-7.2`, never an alias like `q35`,
    /// which means something else in every release.
    #[serde(with = "Name")]
    pub machine: String,
    /// The guest's instruction set: `x86_64`.
    #[serde(with = "Name")]
    pub architecture: String,
    /// Number of virtual CPUs.
    pub cpus: u32,
    /// The model of the virtual CPUs, for a person: what it means is in
    /// [`Processors`](crate::Processors).
    #[serde(with = "Name")]
    pub cpu_model: String,
    /// Who runs it: a name, a space, a version, as in `QEMU 10.0.2`.
    #[serde(with = "Name")]
    pub hypervisor: String,
    /// Whether it runs (at the source), so that a guest that was paused when
    /// it was moved stays so.
    pub running: bool,
    /// Its RAM blocks, in the order of the layout.
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
    /// Where the guest sees it.
    #[serde(with = "List::<MAX_GUEST_RANGES>")]
    pub guest: Vec<GuestRangeDescription>,
}

/// A piece of a RAM block; the sent form of [`GuestRange`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestRangeDescription {
    /// Guest physical address.
    pub gpa: u64,
    /// Offset in the block, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
}

impl GuestDescription {
    /// The sent form of a layout, for [`blocks`](Self::blocks).
    #[must_use]
    pub fn describe_blocks(layout: &RamLayout) -> Vec<BlockDescription> {
        layout
            .blocks()
            .map(|(block, _)| BlockDescription::from(block))
            .collect()
    }

    /// The layout that the blocks form.
    ///
    /// # Errors
    ///
    /// If they form none: whatever a peer sent is checked like our own blocks.
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
