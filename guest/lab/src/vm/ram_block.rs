//! A machine's RAM blocks, read and written from outside through `/proc/PID/mem`.

use super::Vm;
use crate::LabError;
use serde_json::json;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// Bytes that [`RamBlock::differing_pages`] reads at a time.
const STEP: u64 = 1 << 20;
const PAGE: usize = 4096;

/// Bytes of an entry of `/proc/PID/pagemap`, and the bits of its last byte that say that there is a
/// page: 62 of the entry, swapped, and 63, present.
const ENTRY: usize = 8;
const HAS_PAGE: u8 = 0xc0;

/// A RAM block of a QEMU process: memory of the guest, of a device or of the firmware.
///
/// Writes go through QEMU's page tables, so a dirty log sees them as it sees QEMU's own. Reading a
/// page that QEMU does not have yet fills it with zeros.
#[derive(Debug)]
pub struct RamBlock {
    name: String,
    host: u64,
    used: u64,
    memory: File,
    folder: PathBuf,
}

impl Vm {
    /// Opens the RAM block of that name; blocks of PCI devices may be named without the address.
    /// QEMU prints where its blocks are from 8.0 on.
    ///
    /// # Errors
    /// When there is no such block, or its process may not be traced.
    pub fn ram_block(&self, name: &str) -> Result<RamBlock, LabError> {
        let command = "info ramblock";
        let answer = self
            .qmp
            .execute("human-monitor-command", json!({ "command-line": command }))?;
        let text = answer.as_str().unwrap_or_default();
        let line = find(text, name).ok_or_else(|| LabError::Qmp {
            vm: self.name.clone(),
            command: command.to_owned(),
            reason: format!("no block {name:?} with an address in:\n{text}"),
        })?;
        let folder = PathBuf::from(format!("/proc/{}", self.pid));
        let path = folder.join("mem");
        let memory = File::options().read(true).write(true).open(&path);
        Ok(RamBlock {
            name: line.name,
            host: line.host,
            used: line.used,
            memory: memory.map_err(LabError::file("opening", path))?,
            folder,
        })
    }
}

impl RamBlock {
    /// QEMU's name of the block.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes in use.
    pub fn size(&self) -> u64 {
        self.used
    }

    /// Reads from offset `at`.
    ///
    /// # Errors
    /// When the process has ended.
    pub fn read(&self, at: u64, buffer: &mut [u8]) -> Result<(), LabError> {
        let read = self.memory.read_exact_at(buffer, self.host + at);
        read.map_err(LabError::file("reading", self.folder.join("mem")))
    }

    /// All of its content.
    ///
    /// # Errors
    /// See [`RamBlock::read`].
    pub fn content(&self) -> Result<Vec<u8>, LabError> {
        let mut content = vec![0; usize::try_from(self.used).unwrap_or(usize::MAX)];
        self.read(0, &mut content)?;
        Ok(content)
    }

    /// Writes at offset `at`, also where the guest may only read.
    ///
    /// # Errors
    /// When the process has ended.
    pub fn write(&self, at: u64, content: &[u8]) -> Result<(), LabError> {
        let written = self.memory.write_all_at(content, self.host + at);
        written.map_err(LabError::file("writing", self.folder.join("mem")))
    }

    /// The numbers of the pages, from offset `from` on, whose content differs from the other
    /// block's.
    ///
    /// # Errors
    /// See [`RamBlock::read`].
    pub fn differing_pages(&self, other: &Self, from: u64) -> Result<Vec<u64>, LabError> {
        let mut found = Vec::new();
        let mut at = from;
        while at < self.used {
            let bytes = usize::try_from(STEP.min(self.used - at)).unwrap_or(usize::MAX);
            let (mut here, mut there) = (vec![0; bytes], vec![0; bytes]);
            self.read(at, &mut here)?;
            other.read(at, &mut there)?;
            let pages = here.chunks(PAGE).zip(there.chunks(PAGE));
            found.extend(
                (at / PAGE as u64..)
                    .zip(pages)
                    .filter(|(_, (here, there))| here != there)
                    .map(|(page, _)| page),
            );
            at += STEP;
        }
        Ok(found)
    }

    /// How many pages of the block the process has, in memory or swapped. Changes nothing, as
    /// [`RamBlock::read`] may.
    ///
    /// # Errors
    /// When the process has ended.
    pub fn present_pages(&self) -> Result<usize, LabError> {
        let path = self.folder.join("pagemap");
        let reading = || -> std::io::Result<usize> {
            let pages = usize::try_from(self.used).unwrap_or(usize::MAX) / PAGE;
            let mut entries = vec![0; pages * ENTRY];
            let first = self.host / PAGE as u64 * ENTRY as u64;
            File::open(&path)?.read_exact_at(&mut entries, first)?;
            let top = entries.iter().skip(ENTRY - 1).step_by(ENTRY);
            Ok(top.filter(|&&byte| byte & HAS_PAGE != 0).count())
        };
        reading().map_err(LabError::file("reading", &path))
    }

    /// Bytes of the block that the process maps as transparent huge pages.
    ///
    /// # Errors
    /// When the process has ended.
    pub fn huge_bytes(&self) -> Result<u64, LabError> {
        let path = self.folder.join("smaps");
        let smaps = fs::read_to_string(&path).map_err(LabError::file("reading", path))?;
        Ok(huge_bytes(&smaps, self.host, self.host + self.used))
    }
}

/// A line of `info ramblock`.
#[derive(Debug, PartialEq)]
struct Line {
    name: String,
    host: u64,
    used: u64,
}

/// The line of that block. Names can contain blanks, so lines are read from the right.
fn find(text: &str, name: &str) -> Option<Line> {
    let line = |line: &str| -> Option<Line> {
        let mut words = line.rsplit(' ').filter(|word| !word.is_empty());
        let flag = words.next()?;
        let number = |word: &str| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok();
        let (host, _total, used) = (words.next()?, words.next()?, words.next()?);
        let _offset_unit_and_count = words.nth(2)?;
        let mut name: Vec<_> = words.collect();
        name.reverse();
        matches!(flag, "ro" | "rw").then_some(Line {
            name: name.join(" "),
            host: number(host)?,
            used: number(used)?,
        })
    };
    text.lines().map(str::trim_end).filter_map(line).find(|it| {
        let (_, without_address) = it.name.split_once('/').unwrap_or_default();
        it.name == name || without_address == name
    })
}

/// The sum of `AnonHugePages` (proc(5), `smaps`) of the mappings in this range.
fn huge_bytes(smaps: &str, from: u64, to: u64) -> u64 {
    let (mut inside, mut kib) = (false, 0);
    for line in smaps.lines() {
        let (first, rest) = line.split_once(' ').unwrap_or_default();
        if let Some((start, end)) = first.split_once('-') {
            let address = |text| u64::from_str_radix(text, 16).unwrap_or_default();
            inside = address(start) < to && from < address(end);
        } else if first == "AnonHugePages:" && inside {
            let value = rest.trim().strip_suffix(" kB");
            kib += value
                .and_then(|kib| kib.parse::<u64>().ok())
                .unwrap_or_default();
        }
    }
    kib << 10
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCKS: &str = "\
              Block Name    PSize              Offset               Used              Total                HVA  RO
                  pc.ram    4 KiB  0x0000000000000000 0x0000000010000000 0x0000000010000000 0x00007fd6e3e00000  rw\r
   0000:00:01.0/vga.vram    4 KiB  0x0000000010080000 0x0000000000800000 0x0000000000800000 0x00007fd6e3400000  rw\r
    /rom@etc/acpi/tables    4 KiB  0x00000000119c0000 0x0000000000020000 0x0000000000200000 0x00007fd6e1600000  ro\r
";

    #[test]
    fn a_block_is_found_by_its_name_or_by_the_name_of_the_device_s_memory() {
        let of = |name| find(BLOCKS, name);
        let vram = Line {
            name: "0000:00:01.0/vga.vram".to_owned(),
            host: 0x7fd6_e340_0000,
            used: 8 << 20,
        };
        assert_eq!(of("vga.vram"), Some(vram));
        assert_eq!(of("0000:00:01.0/vga.vram"), of("vga.vram"));
        assert_eq!(of("pc.ram").map(|it| it.used), Some(256 << 20));
        assert_eq!(of("/rom@etc/acpi/tables").map(|it| it.used), Some(0x2_0000));
        assert_eq!(of("vga"), None);
    }

    #[test]
    fn huge_pages_of_a_range_are_counted() {
        let smaps = "\
7f0000000000-7f0000400000 rw-p 00000000 00:00 0 
Size:               4096 kB
AnonHugePages:      2048 kB
VmFlags: rd wr mr mw me ac sd hg 
7f0000400000-7f0000800000 rw-p 00000000 00:00 0 [heap]
AnonHugePages:      4096 kB
7f0000900000-7f0000a00000 r--p 00000000 08:01 5 /usr/lib/x-y.so
AnonHugePages:      8192 kB
";
        let of = |from, to| huge_bytes(smaps, from, to) >> 20;
        assert_eq!(of(0x7f00_0000_0000, 0x7f00_0040_0000), 2);
        assert_eq!(of(0x7f00_0020_0000, 0x7f00_0080_0000), 6);
        assert_eq!(of(0x7f00_0080_0000, 0x7f00_0090_0000), 0);
    }
}
