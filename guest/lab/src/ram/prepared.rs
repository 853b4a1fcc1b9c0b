//! QEMU's arguments for a machine's memory, and what must be undone afterwards.

use super::{Ram, RamBackend};
use crate::lab::SHARED_MEMORY;
use crate::{HugePageSize, HugePages, Lab, LabError, Mount, VmConfig};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};

/// A machine's memory, prepared.
#[derive(Debug)]
pub(crate) struct PreparedRam {
    pub(crate) arguments: Vec<String>,
    /// Appended to `-machine TYPE`.
    pub(crate) machine_suffix: String,
    /// The named files, in QEMU's order. QEMU creates them.
    pub(crate) files: Vec<PathBuf>,
    /// The memory backend of a DIMM that is plugged later.
    pub(crate) hot_dimm: Option<Value>,
    /// The folder for files.
    folder: Option<PathBuf>,
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
    /// Prepares the memory of the machine that `config` describes.
    pub(crate) fn new(config: &VmConfig, lab: &Lab, vm: &str) -> Result<Self, LabError> {
        let (ram, incoming) = (&config.ram, config.incoming);
        let mut prepared = Self::with_folder(ram, lab, vm, config.ram_directory.as_deref())?;
        let base: u64 = ram.blocks.iter().sum();
        match ram.dimm {
            Some(dimm) => {
                let most = base + dimm.mib;
                prepared.argument("-m", format!("size={base}M,slots=2,maxmem={most}M"));
            }
            None => prepared.argument("-m", base.to_string()),
        }
        if ram.locked {
            prepared.argument("-overcommit", "mem-lock=on".to_owned());
        }
        match ram.blocks.as_slice() {
            [_] if ram.backend == RamBackend::Default => {}
            [mib] => {
                let id = match (ram.default_name, config.machine.starts_with("microvm")) {
                    (true, true) => "microvm.ram",
                    (true, false) => "pc.ram",
                    (false, _) => "ram",
                };
                let mut object = prepared.object(ram, lab, vm, id, *mib);
                if ram.default_name {
                    object["x-use-canonical-path-for-ramblock-id"] = json!(false);
                }
                prepared.argument("-object", object.to_string());
                prepared.machine_suffix = format!(",memory-backend={id}");
            }
            nodes => {
                for (node, mib) in nodes.iter().enumerate() {
                    let id = format!("ram{node}");
                    let object = prepared.object(ram, lab, vm, &id, *mib);
                    prepared.argument("-object", object.to_string());
                    prepared.argument("-numa", format!("node,nodeid={node},memdev={id}"));
                }
            }
        }
        if let Some(dimm) = ram.dimm {
            let object = prepared.object(ram, lab, vm, "dimm", dimm.mib);
            if dimm.hot && !incoming {
                prepared.hot_dimm = Some(object);
            } else {
                prepared.argument("-object", object.to_string());
                prepared.argument("-device", "pc-dimm,id=dimm-device,memdev=dimm".to_owned());
            }
        }
        Ok(prepared)
    }

    /// Reserves huge pages, and chooses or mounts the folder for files.
    fn with_folder(
        ram: &Ram,
        lab: &Lab,
        vm: &str,
        directory: Option<&Path>,
    ) -> Result<Self, LabError> {
        let reserve = |size| match ram.reserved {
            true => Ok(None),
            false => HugePages::reserve(size, ram.mib()).map(Some),
        };
        let (mut huge_pages, mut mount) = (None, None);
        let folder = match ram.backend {
            RamBackend::File { .. } => Some(directory.unwrap_or(Path::new(SHARED_MEMORY)).into()),
            RamBackend::DiskFile { .. } => Some(lab.disk_folder()?),
            RamBackend::Hugetlbfs { size, .. } => {
                huge_pages = reserve(size)?;
                let mounted = Mount::hugetlbfs(lab, &format!("{vm}-huge"), size)?;
                if size == HugePageSize::Gib1 {
                    mounted.preallocate(ram.mib())?;
                }
                let path = mounted.path().to_owned();
                mount = Some(mounted);
                Some(path)
            }
            RamBackend::Memfd {
                huge: Some(size), ..
            } => {
                huge_pages = reserve(size)?;
                None
            }
            _ => None,
        };
        Ok(Self {
            arguments: Vec::new(),
            machine_suffix: String::new(),
            files: Vec::new(),
            hot_dimm: None,
            folder,
            _mount: mount,
            _huge_pages: huge_pages,
        })
    }

    fn argument(&mut self, name: &str, value: String) {
        self.arguments.extend([name.to_owned(), value]);
    }

    /// The memory backend `id` of `mib` MiB, in the syntax of `object-add` and `-object`.
    fn object(&mut self, ram: &Ram, lab: &Lab, vm: &str, id: &str, mib: u64) -> Value {
        let mut object = json!({ "id": id, "size": mib << 20, "prealloc": ram.prealloc });
        let properties = match ram.backend {
            RamBackend::Default | RamBackend::Anonymous => {
                json!({ "qom-type": "memory-backend-ram", "share": false })
            }
            RamBackend::SharedAnonymous => {
                json!({ "qom-type": "memory-backend-ram", "share": true })
            }
            RamBackend::Memfd { share, seal, huge } => {
                let mut memfd = json!({
                    "qom-type": "memory-backend-memfd",
                    "share": share,
                    "seal": seal,
                    "hugetlb": huge.is_some(),
                });
                if let Some(size) = huge {
                    memfd["hugetlbsize"] = json!(size.mib() << 20);
                }
                memfd
            }
            RamBackend::File { share }
            | RamBackend::DiskFile { share }
            | RamBackend::Hugetlbfs { share, .. } => {
                // So aligned that the kernel can use huge pages.
                let align = match ram.backend {
                    RamBackend::Hugetlbfs { size, .. } => size,
                    _ => HugePageSize::Mib2,
                };
                let folder = self.folder.as_deref().unwrap_or(Path::new(SHARED_MEMORY));
                let path = lab.ram_file(folder, &format!("{vm}-{id}"));
                let file = json!({
                    "qom-type": "memory-backend-file",
                    "mem-path": path,
                    "share": share,
                    "align": align.mib() << 20,
                });
                self.files.push(path);
                file
            }
        };
        if let (Some(object), Value::Object(properties)) = (object.as_object_mut(), properties) {
            object.extend(properties);
        }
        object
    }
}
