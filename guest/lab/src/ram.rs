//! The layout and the backing of a machine's memory.

use crate::lab::SHARED_MEMORY;
use crate::{HugePageSize, HugePages, Lab, LabError, Mount};
use std::fs;
use std::path::{Path, PathBuf};

/// A machine's memory. Sizes are in MiB.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Ram {
    /// One shared file on tmpfs.
    Shared {
        /// Its size.
        mib: u64,
    },
    /// A shared file for each NUMA node, on tmpfs.
    Numa {
        /// The nodes' sizes.
        nodes: Vec<u64>,
    },
    /// One shared file, and another one as a DIMM, on tmpfs.
    Dimm {
        /// The first file's size.
        mib: u64,
        /// The DIMM's size: a multiple of 128.
        dimm_mib: u64,
    },
    /// One shared file on hugetlbfs with pages of 2 MiB.
    Huge2M {
        /// Its size: even.
        mib: u64,
    },
    /// One shared file on hugetlbfs with pages of 1 GiB.
    Huge1G {
        /// Its size.
        gib: u64,
    },
    /// A private mapping of a file; migration is refused.
    PrivateFile {
        /// Its size.
        mib: u64,
    },
    /// Anonymous memory; migration is refused.
    Anonymous {
        /// Its size.
        mib: u64,
    },
    /// A memfd; migration is refused.
    Memfd {
        /// Its size.
        mib: u64,
    },
}

impl Ram {
    /// One shared file of `mib` MiB on tmpfs.
    pub fn shared(mib: u64) -> Self {
        Self::Shared { mib }
    }

    /// The total size, MiB.
    pub fn mib(&self) -> u64 {
        match self {
            Self::Shared { mib }
            | Self::Huge2M { mib }
            | Self::PrivateFile { mib }
            | Self::Anonymous { mib }
            | Self::Memfd { mib } => *mib,
            Self::Huge1G { gib } => gib * 1024,
            Self::Numa { nodes } => nodes.iter().sum(),
            Self::Dimm { mib, dimm_mib } => mib + dimm_mib,
        }
    }
}

/// Memory prepared for one machine: QEMU's arguments, and what must be undone afterwards.
#[derive(Debug)]
pub(crate) struct PreparedRam {
    pub(crate) arguments: Vec<String>,
    /// Appended to `-machine TYPE`.
    pub(crate) machine_suffix: &'static str,
    /// In QEMU's order. QEMU creates them.
    pub(crate) files: Vec<PathBuf>,
    /// The alignment of mapped files, so that the kernel can use huge pages.
    align: HugePageSize,
    // In this order: first unmounted, then the pages can be returned.
    _mount: Option<Mount>,
    _huge_pages: Option<HugePages>,
}

impl Drop for PreparedRam {
    fn drop(&mut self) {
        for file in &self.files {
            let _ = fs::remove_file(file);
        }
    }
}

impl PreparedRam {
    pub(crate) fn new(
        ram: &Ram,
        lab: &Lab,
        vm: &str,
        directory: Option<&Path>,
    ) -> Result<Self, LabError> {
        let mut prepared = Self {
            arguments: Vec::new(),
            machine_suffix: "",
            files: Vec::new(),
            align: HugePageSize::Mib2,
            _mount: None,
            _huge_pages: None,
        };
        let directory = directory.unwrap_or(Path::new(SHARED_MEMORY)).to_owned();
        match ram {
            Ram::Shared { mib } => {
                prepared.size(&mib.to_string());
                prepared.file(lab, &directory, vm, "ram", *mib, "on");
                prepared.machine_suffix = ",memory-backend=ram";
            }
            Ram::PrivateFile { mib } => {
                prepared.size(&mib.to_string());
                prepared.file(lab, &directory, vm, "ram", *mib, "off");
                prepared.machine_suffix = ",memory-backend=ram";
            }
            Ram::Numa { nodes } => {
                prepared.size(&ram.mib().to_string());
                for (node, mib) in nodes.iter().enumerate() {
                    let id = format!("ram{node}");
                    prepared.file(lab, &directory, vm, &id, *mib, "on");
                    prepared.argument("-numa", format!("node,nodeid={node},memdev={id}"));
                }
            }
            Ram::Dimm { mib, dimm_mib } => {
                prepared.size(&format!("size={mib}M,slots=2,maxmem={}M", mib + dimm_mib));
                prepared.file(lab, &directory, vm, "ram", *mib, "on");
                prepared.file(lab, &directory, vm, "dimm", *dimm_mib, "on");
                prepared.argument("-device", "pc-dimm,id=dimm-device,memdev=dimm".to_owned());
                prepared.machine_suffix = ",memory-backend=ram";
            }
            Ram::Huge2M { .. } => prepared.huge(HugePageSize::Mib2, ram.mib(), lab, vm)?,
            Ram::Huge1G { .. } => prepared.huge(HugePageSize::Gib1, ram.mib(), lab, vm)?,
            Ram::Anonymous { mib } => {
                prepared.size(&mib.to_string());
                prepared.argument("-object", format!("memory-backend-ram,id=ram,size={mib}M"));
                prepared.machine_suffix = ",memory-backend=ram";
            }
            Ram::Memfd { mib } => {
                prepared.size(&mib.to_string());
                prepared.argument(
                    "-object",
                    format!("memory-backend-memfd,id=ram,size={mib}M,share=on"),
                );
                prepared.machine_suffix = ",memory-backend=ram";
            }
        }
        Ok(prepared)
    }

    fn huge(&mut self, size: HugePageSize, mib: u64, lab: &Lab, vm: &str) -> Result<(), LabError> {
        self._huge_pages = Some(HugePages::reserve(size, mib)?);
        let mount = Mount::hugetlbfs(lab, &format!("{vm}-huge"), size)?;
        if size == HugePageSize::Gib1 {
            mount.preallocate(mib)?;
        }
        self.size(&mib.to_string());
        self.align = size;
        self.file(lab, mount.path(), vm, "ram", mib, "on");
        self._mount = Some(mount);
        self.machine_suffix = ",memory-backend=ram";
        Ok(())
    }

    fn argument(&mut self, name: &str, value: String) {
        self.arguments.extend([name.to_owned(), value]);
    }

    fn size(&mut self, size: &str) {
        self.argument("-m", size.to_owned());
    }

    fn file(&mut self, lab: &Lab, directory: &Path, vm: &str, id: &str, mib: u64, share: &str) {
        let path = lab.ram_file(directory, &format!("{vm}-{id}"));
        self.argument(
            "-object",
            format!(
                "memory-backend-file,id={id},size={mib}M,mem-path={},share={share},align={}",
                path.display(),
                self.align.option()
            ),
        );
        self.files.push(path);
    }
}
