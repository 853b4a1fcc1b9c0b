//! How much of a guest's RAM is there, from outside: pages of post-copy that have arrived.

use hikkoshi_lab::Vm;
use std::fs;
use std::os::unix::fs::MetadataExt;

/// The size of the guest's RAM in a drill.
pub const RAM_MIB: u64 = 256;

/// KiB of the guest's RAM that take memory: of its files (holes in tmpfs are missing pages), or of
/// QEMU's private memory.
///
/// # Panics
/// When the files, or QEMU's mappings, cannot be read.
pub(super) fn ram_held(vm: &Vm) -> f64 {
    let kib = match vm.ram_files() {
        [] => private_kib(&fs::read_to_string(format!("/proc/{}/smaps", vm.pid())).unwrap()),
        // Blocks of 512 bytes, stat(2).
        files => files
            .iter()
            .map(|path| fs::metadata(path).unwrap().blocks() / 2)
            .sum(),
    };
    #[allow(clippy::cast_precision_loss)]
    let kib = kib as f64;
    kib
}

/// KiB that the anonymous mappings of the size of the guest's RAM have in memory or in swap space
/// (`smaps` in proc(5)).
fn private_kib(smaps: &str) -> u64 {
    let (mut held, mut anonymous, mut ram) = (0, false, false);
    for line in smaps.lines() {
        let Some((field, value)) = line
            .split_once(':')
            .filter(|(field, _)| !field.contains(' '))
        else {
            // 7f5c…-7f5d… rw-p 00000000 00:00 0
            anonymous = line.split_whitespace().count() == 5;
            continue;
        };
        let kib = || value.trim().strip_suffix(" kB")?.parse::<u64>().ok();
        match field {
            "Size" => ram = anonymous && kib() == Some(RAM_MIB << 10),
            "Rss" | "Swap" if ram => held += kib().unwrap_or(0),
            _ => {}
        }
    }
    held
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_guests_memory_is_counted() {
        let block = |first: &str, size: u64| {
            format!(
                "{first}\nSize: {size} kB\nRss: 100 kB\nPss: 90 kB\nSwap: 7 kB\nSwapPss: 7 kB\n"
            )
        };
        let ram = RAM_MIB << 10;
        let smaps = [
            block(
                "55d0a0000000-55d0b0000000 rw-p 00000000 00:00 0  [heap]",
                ram,
            ),
            block("7f0000000000-7f0010000000 rw-p 00000000 00:00 0 ", ram),
            block(
                "7f0020000000-7f0030000000 rw-p 00000000 00:1a 5 /dev/shm/x",
                ram,
            ),
            block("7f0040000000-7f0040001000 rw-p 00000000 00:00 0 ", 4),
        ];
        assert_eq!(private_kib(&smaps.concat()), 107);
    }
}
