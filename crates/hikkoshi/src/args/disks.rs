//! What is to be done with the guest's disks.

use clap::Args;
use hikkoshi_qemu::DiskSelection;

use super::headings::MIGRATION;

#[derive(Debug, Clone, Default, Args)]
pub(crate) struct DiskArgs {
    /// Copy the guest's disks to the destination's, while the guest runs: all, or these
    ///
    /// Without DISKS, each disk that the guest can write to. With DISKS, a list with commas: those
    /// disks, by the device's id, the -drive's name or the block node's. The destination's QEMU
    /// must have images of its own, of the same size; what they hold is overwritten. Memory follows
    /// when all disks are the same on both sides.
    #[arg(verbatim_doc_comment,
        long,
        value_name = "DISKS",
        value_delimiter = ',',
        num_args = 0..=1,
        require_equals = true,
        help_heading = MIGRATION
    )]
    pub copy_disks: Option<Vec<String>>,

    /// Both hosts use the same disks: all that are not copied, or these
    ///
    /// Only needed for disks of which that is not found out: the guest would be refused, because it
    /// would continue on other content. Found out are files of NFS, CephFS, GlusterFS, GFS2, OCFS2
    /// and others, disks with a World Wide Name, and network disks. With DISKS, a list with commas,
    /// as for --copy-disks. Disks of different sizes are always refused.
    #[arg(verbatim_doc_comment,
        long,
        value_name = "DISKS",
        value_delimiter = ',',
        num_args = 0..=1,
        require_equals = true,
        help_heading = MIGRATION
    )]
    pub shared_disks: Option<Vec<String>>,

    /// Copy disks without the internal snapshots of their images
    ///
    /// Otherwise a guest with such snapshots is refused, because a copy does not have them. So is a
    /// domain with snapshots; with this option, the destination's libvirt does not know of them.
    #[arg(verbatim_doc_comment, long, requires = "copy_disks", help_heading = MIGRATION)]
    pub drop_snapshots: bool,

    /// Copy disks without their dirty bitmaps
    ///
    /// Otherwise a guest with dirty bitmaps is refused, because a copy does not have them: the next
    /// incremental backup would be incomplete.
    #[arg(verbatim_doc_comment, long, requires = "copy_disks", help_heading = MIGRATION)]
    pub drop_bitmaps: bool,
}

impl DiskArgs {
    /// What is to be done with the disks.
    pub(crate) fn selection(&self) -> DiskSelection {
        DiskSelection {
            copied: self.copy_disks.clone(),
            shared: self.shared_disks.clone(),
            drop_snapshots: self.drop_snapshots,
            drop_bitmaps: self.drop_bitmaps,
        }
    }
}
