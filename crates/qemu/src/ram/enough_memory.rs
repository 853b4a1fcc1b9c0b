//! Checks that the destination has memory for the guest's: in its file systems, in its pools of
//! huge pages, in its cgroups, and altogether.
//!
//! Memory is allocated page by page, when the guest's pages arrive. If it runs out during pre-copy,
//! the migration fails. In post-copy the guest would wait for ever, or the kernel would end the
//! QEMU, and the guest with it.
//!
//! | memory | limited by |
//! | --- | --- |
//! | private | the host, the cgroups of QEMU |
//! | a memfd or a file on tmpfs | its file system, the host, the cgroups of QEMU |
//! | hugetlbfs | the pool, the cgroups of QEMU and of this process |
//! | a file on a disk | nothing: the kernel writes its pages back |
//!
//! Pages of 4 KiB are charged to QEMU, in whatever mode they arrive; huge pages to the process that
//! installs them, and those that the guest first touches to QEMU
//! (docs/decisions/0029-charge-guest-memory-to-qemu.md).
//!
//! What QEMU has allocated already (`prealloc=on`, `-overcommit mem-lock=on`) is not needed again:
//! its pages are replaced. But what QEMU itself needs to run the guest still is.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use hikkoshi_linux::{
    AvailableMemory, CgroupLimit, Process, huge_pages_available, memory_available,
};
use hikkoshi_memory::{PrivateMemory, RamFile};

use crate::ram::blocks::RamBlockInfo;
use crate::ram::file::{BlockMemory, FileKind, FileSystem, Kind};
use crate::ram::not_enough_memory::NotEnoughMemory;

const MIB: u64 = 1 << 20;

/// Of guest memory, this part is needed besides to manage it: page tables of QEMU and of KVM, and
/// the index of a file's pages, 8 to 9 bytes each for a page of 4 KiB.
const MANAGEMENT_SHARE: u64 = 128;

/// What QEMU itself allocates when it runs a guest, besides what it has while it waits for one.
/// With KVM it was 2 MiB (QEMU 7.2 and 10.0, virtio devices, guest in its firmware); the rest is
/// for device emulation under load.
const OWN_BYTES_KVM: u64 = 16 * MIB;

/// What QEMU itself allocates with TCG, which keeps translated code: 58 to 62 MiB were measured
/// after Linux had booted.
const OWN_BYTES_TCG: u64 = 64 * MIB;

/// What to do about a destination whose free memory is less than the guest's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Overcommit {
    /// It does not receive the guest.
    #[default]
    Refuse,
    /// It receives it: the user expects that the memory will suffice. Limits of file systems, pools
    /// of huge pages and cgroups' limits of huge pages hold nevertheless.
    Allow,
}

/// What several blocks need together.
#[derive(Debug, Default)]
struct Need {
    ids: Vec<String>,
    bytes: u64,
    free: u64,
}

impl Need {
    fn add(&mut self, block: &RamBlockInfo, bytes: u64) {
        // ROMs of a few pages would only make messages long.
        if bytes >= MIB {
            self.ids.push(format!("\"{}\"", block.name));
        }
        self.bytes = self.bytes.saturating_add(bytes);
    }

    fn ids(&self) -> String {
        self.ids.join(", ")
    }
}

/// What all blocks need.
#[derive(Debug, Default)]
struct Needs {
    /// By file system.
    systems: BTreeMap<u64, Need>,
    /// By the bytes of a huge page: pages that are not reserved.
    pools: BTreeMap<u64, Need>,
    /// By the bytes of a huge page, and whether they are reserved.
    huge: BTreeMap<(u64, bool), Need>,
    /// Memory in pages of 4 KiB: the host's, which QEMU's cgroup pays for.
    memory: Need,
}

/// Checks all blocks of `process` together: several may be on one file system. `reserved` says
/// which of them have reserved their huge pages. Adds to `warnings`, for people, what is not a
/// reason to refuse the guest.
pub(crate) fn check<'a>(
    process: &Process,
    blocks: impl Iterator<Item = (&'a RamBlockInfo, &'a BlockMemory, bool)>,
    warnings: &mut Vec<String>,
) -> Result<(), NotEnoughMemory> {
    let mut needs = Needs::default();
    for (block, memory, reserved) in blocks {
        needs
            .add(block, memory, reserved)
            .map_err(|source| NotEnoughMemory::Query {
                id: block.name.clone(),
                source,
            })?;
    }
    needs.check_systems()?;
    needs.check_pools()?;
    let own = Process::open(std::process::id()).map_err(NotEnoughMemory::Available)?;
    for (of_qemu, process) in [(true, process), (false, &own)] {
        needs.check_huge_pages(of_qemu, |page, reserved| {
            huge_pages_available(process, page, reserved)
        })?;
    }
    let available = memory_available(process).map_err(NotEnoughMemory::Available)?;
    if available.is_any_unseen {
        warnings.push(format!(
            "a cgroup of QEMU's process {} is not mounted here: limits of its memory are not \
             compared",
            process.pid()
        ));
    }
    warnings.extend(needs.check_memory(&available, own_bytes(process))?);
    Ok(())
}

/// What this QEMU will need itself.
fn own_bytes(process: &Process) -> u64 {
    let is_kvm = |number| {
        let described = process.describe_descriptor(number);
        described.is_ok_and(|(target, _)| target.as_os_str() == "anon_inode:kvm-vm")
    };
    match process.descriptors() {
        Ok(numbers) if !numbers.iter().copied().any(is_kvm) => OWN_BYTES_TCG,
        _ => OWN_BYTES_KVM,
    }
}

impl Needs {
    fn add(
        &mut self,
        block: &RamBlockInfo,
        memory: &BlockMemory,
        reserved: bool,
    ) -> io::Result<()> {
        let held = memory.backing.private().map(PrivateMemory::held_bytes);
        let private = held.transpose()?;
        let private = private.map(|held| block.total.saturating_sub(held));
        match &memory.kind {
            Kind::Shared(file) | Kind::Private(file) if file.system == FileSystem::Huge => {
                let needed = private.unwrap_or_else(|| absent(block, file));
                let huge = self.huge.entry((block.page_size, reserved)).or_default();
                huge.add(block, needed);
                // Otherwise QEMU reserved them when it mapped the file, or it would not have
                // started.
                if !reserved {
                    let need = self.pools.entry(block.page_size).or_default();
                    need.free = free_huge_pages(block.page_size)?.saturating_mul(block.page_size);
                    need.add(block, needed);
                }
                return Ok(());
            }
            Kind::Shared(file) => self.add_file(block, memory.backing.file(), file)?,
            // A page that the process writes is its own, and takes a page of zeros in the tmpfs.
            Kind::Private(file) if file.system == FileSystem::Tmpfs => {
                let opened = memory.backing.private().and_then(PrivateMemory::file);
                self.add_file(block, opened, file)?;
            }
            Kind::Private(_) | Kind::Anonymous => {}
        }
        self.memory.add(block, private.unwrap_or(0));
        Ok(())
    }

    fn add_file(
        &mut self,
        block: &RamBlockInfo,
        opened: Option<&RamFile>,
        file: &FileKind,
    ) -> io::Result<()> {
        let needed = absent(block, file);
        if file.system == FileSystem::Tmpfs {
            self.memory.add(block, needed);
        }
        let Some(opened) = opened else {
            return Ok(());
        };
        let system = rustix::fs::fstatvfs(opened.as_fd())?;
        // A tmpfs without a size limit has no blocks.
        if system.f_blocks > 0 {
            let need = self.systems.entry(file.metadata.dev()).or_default();
            need.free = system.f_bavail.saturating_mul(system.f_frsize);
            need.add(block, needed);
        }
        Ok(())
    }

    fn check_systems(&self) -> Result<(), NotEnoughMemory> {
        match self.systems.values().find(|need| need.bytes > need.free) {
            None => Ok(()),
            Some(need) => Err(NotEnoughMemory::FileSystem {
                ids: need.ids(),
                free: need.free,
                needed: need.bytes,
            }),
        }
    }

    fn check_pools(&self) -> Result<(), NotEnoughMemory> {
        match self.pools.iter().find(|(_, need)| need.bytes > need.free) {
            None => Ok(()),
            Some((&page, need)) => Err(NotEnoughMemory::HugePages {
                ids: need.ids(),
                page,
                free: need.free / page,
                needed: need.bytes / page,
            }),
        }
    }

    fn check_huge_pages(
        &self,
        of_qemu: bool,
        available: impl Fn(u64, bool) -> io::Result<Option<CgroupLimit>>,
    ) -> Result<(), NotEnoughMemory> {
        for (&(page, reserved), need) in &self.huge {
            match available(page, reserved).map_err(NotEnoughMemory::Available)? {
                Some(limit) if need.bytes > limit.available => {
                    return Err(NotEnoughMemory::HugePageLimit {
                        ids: need.ids(),
                        needed: need.bytes,
                        of_qemu,
                        limit,
                    });
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn check_memory(
        &self,
        available: &AvailableMemory,
        own: u64,
    ) -> Result<Option<String>, NotEnoughMemory> {
        let ids = || match self.memory.ids() {
            // QEMU's own needs are still to come.
            ids if ids.is_empty() => "(all of it is allocated, or in huge pages)".to_owned(),
            ids => ids,
        };
        let needed = with_own_needs(self.memory.bytes, own);
        if needed > available.host {
            return Err(NotEnoughMemory::Memory {
                ids: ids(),
                needed,
                available: available.host,
            });
        }
        let exceeded = |limit: &&CgroupLimit| needed > limit.available;
        if let Some(limit) = available.limit.as_ref().filter(exceeded) {
            return Err(NotEnoughMemory::MemoryLimit {
                ids: ids(),
                needed,
                limit: limit.clone(),
            });
        }
        let throttled = available.throttled.as_ref().filter(exceeded);
        Ok(throttled.map(|limit| {
            format!(
                "the guest's memory {} needs {} MiB more, with what QEMU itself needs: the kernel will \
                 slow QEMU down, because its cgroup {} can have {} MiB before that (raise {})",
                ids(),
                needed.div_ceil(MIB),
                limit.cgroup.display(),
                limit.available / MIB,
                limit.file
            )
        }))
    }
}

/// Bytes that QEMU needs for `guest` bytes of guest memory that it does not have yet, and `own`
/// bytes for itself.
fn with_own_needs(guest: u64, own: u64) -> u64 {
    guest
        .saturating_add(guest / MANAGEMENT_SHARE)
        .saturating_add(own)
}

/// Bytes of the block that its file does not have yet.
fn absent(block: &RamBlockInfo, file: &FileKind) -> u64 {
    // In blocks of 512 bytes on every file system.
    let allocated = file.metadata.blocks().saturating_mul(512);
    block.total.saturating_sub(allocated)
}

/// Huge pages of `size` bytes that are neither used nor reserved, plus those that
/// the pool may still grow by (overcommit).
fn free_huge_pages(size: u64) -> io::Result<u64> {
    let folder = format!("/sys/kernel/mm/hugepages/hugepages-{}kB", size / 1024);
    let read = |name: &str| -> io::Result<u64> {
        let text = std::fs::read_to_string(Path::new(&folder).join(name))?;
        text.trim()
            .parse()
            .map_err(|_| io::ErrorKind::InvalidData.into())
    };
    let free = read("free_hugepages")?.saturating_sub(read("resv_hugepages")?);
    let growth = read("nr_overcommit_hugepages")?.saturating_sub(read("surplus_hugepages")?);
    Ok(free.saturating_add(growth))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(name: &str) -> RamBlockInfo {
        RamBlockInfo {
            name: name.into(),
            page_size: 4096,
            offset: 0,
            used: 1 << 30,
            total: 1 << 30,
            host: None,
            read_only: None,
        }
    }

    fn limit(mib: u64, file: &str) -> CgroupLimit {
        CgroupLimit {
            available: mib * MIB,
            cgroup: "/cgroup/qemu".into(),
            file: file.to_owned(),
        }
    }

    #[test]
    fn memory_has_to_fit_into_the_host_and_the_cgroup() {
        let mut needs = Needs::default();
        needs.memory.add(&block("pc.ram"), 1024 * MIB);
        let whole = with_own_needs(1024 * MIB, OWN_BYTES_KVM) / MIB;
        assert!(whole > 1024, "QEMU needs memory, too");
        let available = |host: u64, within: Option<u64>| AvailableMemory {
            host: host * MIB,
            limit: within.map(|mib| limit(mib, "memory.max")),
            // Only a warning.
            throttled: Some(limit(10, "memory.high")),
            is_any_unseen: false,
        };
        let check = |available| needs.check_memory(&available, OWN_BYTES_KVM);
        let warned = check(available(whole, None)).unwrap().unwrap();
        assert!(
            warned.ends_with("can have 10 MiB before that (raise memory.high)"),
            "{warned}"
        );
        check(available(whole, Some(whole))).unwrap();
        let text = |available| check(available).unwrap_err().to_string();
        assert_eq!(
            text(available(whole - 1, None)),
            format!(
                "the guest's memory \"pc.ram\" needs {whole} MiB more, with what QEMU itself needs, \
                 but {} MiB are available on this host, with swap space: free some, add swap space, \
                 use another destination, or say --allow-overcommit if the guest will not use all of \
                 its memory, or other programs will free theirs",
                whole - 1
            )
        );
        assert_eq!(
            text(available(whole, Some(1024))),
            format!(
                "the guest's memory \"pc.ram\" needs {whole} MiB more, with what QEMU itself needs, \
                 but QEMU's cgroup /cgroup/qemu can have 1024 MiB, with swap space: raise its limit \
                 (memory.max), or say --allow-overcommit if the guest will not use all of its memory"
            )
        );
        // What QEMU itself needs is not allocated.
        let allocated = |mib| {
            let available = available(mib, Some(mib));
            Needs::default().check_memory(&available, OWN_BYTES_KVM)
        };
        allocated(OWN_BYTES_KVM / MIB).unwrap();
        let error = allocated(0).unwrap_err().to_string();
        let expected = "the guest's memory (all of it is allocated, or in huge pages) needs 16 MiB";
        assert!(error.starts_with(expected), "{error}");
    }

    #[test]
    fn huge_pages_have_to_fit_into_the_cgroups_that_pay_for_them() {
        let mut needs = Needs::default();
        let huge = needs.huge.entry((2 * MIB, true)).or_default();
        huge.add(&block("ram"), 64 * MIB);
        let check = |of_qemu, mib| {
            needs.check_huge_pages(of_qemu, |page, reserved| {
                assert_eq!((page, reserved), (2 * MIB, true));
                Ok(Some(limit(mib, "hugetlb.2MB.max")))
            })
        };
        check(true, 64).unwrap();
        let error = check(false, 62).unwrap_err();
        assert!(!error.is_overcommit());
        assert_eq!(
            error.to_string(),
            "the guest's memory \"ram\" needs 64 MiB more in huge pages, but the cgroup \
             /cgroup/qemu of this hikkoshi, to which the pages that it receives are charged, can have \
             62 MiB: raise its limit (hugetlb.2MB.max)"
        );
    }
}
