//! Lists the RAM blocks, from QEMU's `info ramblock`.
//!
//! QMP does not report them. The human monitor prints one line for each block, from the
//! largest to the smallest:
//!
//! ```text
//!               Block Name    PSize              Offset               Used              Total
//!               HVA  RO pc.ram    4 KiB  0x0000000000000000 0x0000000010000000 0x0000000010000000
//!               0x00007fd6e3e00000  rw /rom@etc/acpi/tables    4 KiB  0x00000000119c0000
//!               0x0000000000020000 0x0000000000200000 0x00007fd6e1600000  ro
//! ```
//!
//! The last two columns exist from QEMU 8.0 on. A name longer than its column pushes the
//! others to the right, and can contain blanks (`-option-rom` with such a file), so lines
//! are parsed from the right. A block without a name is not migrated by QEMU.
//!
//! A line that is not understood is an error: a block that is overlooked would be lost.

use std::collections::BTreeSet;

use hikkoshi_pages::RamLayout;

use crate::qmp::{Client, QmpError};

/// The most blocks, as in [`hikkoshi_pages::RamLayout`]'s description on the wire; a
/// machine has some tens of them.
const MAX_BLOCKS: usize = 1 << 12;

/// The most bytes of a name: QEMU's `RAMBlock.idstr` without its end mark.
const MAX_NAME: usize = 255;

/// A RAM block with a name, which QEMU migrates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RamBlockInfo {
    /// Its name (`idstr`), which is the same at both sides of a migration.
    pub(crate) name: String,
    /// Bytes of its host pages.
    pub(crate) page_size: u64,
    /// Its address among all blocks (`ram_addr_t`), which only QEMU itself uses.
    pub(crate) offset: u64,
    /// Bytes in use. Only ROMs that the firmware reads are resizable: the used length is
    /// set by QEMU's migration stream when it is loaded.
    pub(crate) used: u64,
    /// Bytes allocated, at least `used`. The same at both sides.
    pub(crate) total: u64,
    /// Where it begins in QEMU's address space (QEMU 8.0 and later).
    pub(crate) host: Option<u64>,
    /// Whether the guest cannot write it (QEMU 8.0 and later).
    pub(crate) read_only: Option<bool>,
}

/// The first difference between the guest's memory and the blocks that QEMU has now; `None` if they
/// are the same. A block is added and removed with its device.
pub(crate) fn difference(layout: &RamLayout, now: &[RamBlockInfo]) -> Option<String> {
    let of = |name: &str| now.iter().find(|block| block.name == name);
    let gone = layout.blocks().find_map(|(block, _)| match of(&block.id) {
        None => Some(format!("{:?} has been removed", block.id)),
        Some(now) if now.total != block.bytes => Some(format!(
            "{:?} had {} bytes, and has {}",
            block.id, block.bytes, now.total
        )),
        Some(_) => None,
    });
    let new = |block: &&RamBlockInfo| layout.blocks().all(|(known, _)| known.id != block.name);
    gone.or_else(|| Some(format!("{:?} has been added", now.iter().find(new)?.name)))
}

/// All RAM blocks with a name, in QEMU's order.
///
/// # Errors
///
/// A failed command, or an answer that is not understood completely.
pub(crate) fn list(client: &mut Client) -> Result<Vec<RamBlockInfo>, QmpError> {
    const COMMAND: &str = "info ramblock";
    let text = crate::qmp::human_monitor::human(client, COMMAND)?;
    parse(&text).map_err(|what| QmpError::unexpected(COMMAND, what))
}

/// Parses the answer; the error describes what was not understood.
pub(crate) fn parse(text: &str) -> Result<Vec<RamBlockInfo>, String> {
    let mut lines = text
        .split('\n')
        .map(|line| line.strip_suffix('\r').unwrap_or(line))
        .filter(|line| !line.is_empty());
    let header = lines.next().unwrap_or_default();
    let columns = match header.trim_start() {
        columns if !columns.starts_with("Block Name ") => None,
        columns => columns.split_whitespace().next_back(),
    };
    let with_host = match columns {
        Some("Total") => false,
        Some("RO") => true,
        _ => return Err(format!("the table's first line is {header:?}")),
    };
    let mut found = Vec::new();
    let mut names = BTreeSet::new();
    for (count, line) in lines.enumerate() {
        if count >= MAX_BLOCKS {
            return Err(format!("more than {MAX_BLOCKS} blocks"));
        }
        let block = block(line, with_host).ok_or_else(|| format!("the line {line:?}"))?;
        if block.name.is_empty() {
            continue;
        }
        if !names.insert(block.name.clone()) {
            return Err(format!("two blocks are named {:?}", block.name));
        }
        found.push(block);
    }
    Ok(found)
}

/// Parses one line. `None` if it is not as QEMU prints it.
fn block(line: &str, with_host: bool) -> Option<RamBlockInfo> {
    let (line, host, read_only) = if with_host {
        let (line, flag) = last_word(line)?;
        let read_only = match flag {
            "ro" => true,
            "rw" => false,
            _ => return None,
        };
        let (line, host) = last_number(line)?;
        // No page of a process begins at 0.
        let host = Some(host).filter(|host| *host != 0 && host.is_multiple_of(4096))?;
        (line, Some(host), Some(read_only))
    } else {
        (line, None, None)
    };
    let (line, total) = last_number(line)?;
    let (line, used) = last_number(line)?;
    let (line, offset) = last_number(line)?;
    let (line, unit) = last_word(line)?;
    let (line, count) = last_word(line)?;
    let page_size = page_size(count, unit)?;
    let name = line.trim_matches(' ');
    let is_sound = name.len() <= MAX_NAME
        && !name.contains(char::is_control)
        && used <= total
        && total != 0
        && host.unwrap_or(0).checked_add(total).is_some();
    is_sound.then(|| RamBlockInfo {
        name: name.to_owned(),
        page_size,
        offset,
        used,
        total,
        host,
        read_only,
    })
}

/// The line before its last word, and the word.
fn last_word(line: &str) -> Option<(&str, &str)> {
    line.trim_end_matches(' ').rsplit_once(' ')
}

/// The line before its last word, and that word as a number of 16 hexadecimal digits.
fn last_number(line: &str) -> Option<(&str, u64)> {
    let (line, word) = last_word(line)?;
    let digits = word.strip_prefix("0x").filter(|digits| {
        digits.len() == 16 && digits.bytes().all(|digit| digit.is_ascii_hexdigit())
    })?;
    Some((line, u64::from_str_radix(digits, 16).ok()?))
}

/// `4 KiB`: QEMU's `size_to_str` of a power of two.
fn page_size(count: &str, unit: &str) -> Option<u64> {
    let shift = match unit {
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        _ => return None,
    };
    let count: u64 = count.parse().ok().filter(|count| *count < 1024)?;
    let bytes = count << shift;
    (bytes.is_power_of_two() && bytes >= 4096).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hikkoshi_pages::RamBlock;
    use proptest::prelude::*;

    const V7: &str = include_str!("../../tests/captured/ramblock-7.2-q35.txt");
    const V10: &str = include_str!("../../tests/captured/ramblock-10.0-q35.txt");

    #[test]
    fn a_real_machine_of_each_version() {
        let (v7, v10) = (parse(V7).unwrap(), parse(V10).unwrap());
        assert_eq!((v7.len(), v10.len()), (13, 13));
        for (old, new) in v7.iter().zip(&v10) {
            let without = RamBlockInfo {
                host: None,
                read_only: None,
                ..new.clone()
            };
            assert_eq!(*old, without);
        }
        let ram = &v10[0];
        assert_eq!((ram.name.as_str(), ram.page_size), ("pc.ram", 4096));
        assert_eq!((ram.used, ram.total), (256 << 20, 256 << 20));
        assert_eq!(ram.host, Some(0x7fd6_e3e0_0000));
        assert_eq!(ram.read_only, Some(false));
        let tables = &v10[3];
        assert_eq!(tables.name, "/rom@etc/acpi/tables");
        assert_eq!((tables.used, tables.total), (0x2_0000, 0x20_0000));
        assert_eq!(tables.read_only, Some(true));
        // It is longer than its column.
        assert_eq!(v7[1].name, "0000:00:09.0/bochs-display-vram");
    }

    #[test]
    fn every_difference_of_the_memory_is_found() {
        let blocks = parse(V10).unwrap();
        let layout = |blocks: &[RamBlockInfo]| {
            let known = blocks
                .iter()
                .map(|block| RamBlock::new(block.name.clone(), block.total, block.page_size));
            RamLayout::new(known.collect()).unwrap()
        };
        let all = layout(&blocks);
        assert_eq!(difference(&all, &blocks), None);
        let mut now = blocks.clone();
        now.reverse();
        // Only a part of it is in use.
        now[0].used = 4096;
        assert_eq!(difference(&all, &now), None);
        let text = |now: &[RamBlockInfo]| difference(&all, now).unwrap();
        assert_eq!(text(&blocks[1..]), "\"pc.ram\" has been removed");
        now[0].total *= 2;
        assert!(text(&now).contains(" bytes, and has "), "{}", text(&now));
        let fewer = difference(&layout(&blocks[1..]), &blocks);
        assert_eq!(fewer.unwrap(), "\"pc.ram\" has been added");
    }

    #[test]
    fn lines_end_as_in_a_terminal() {
        let text = V10.replace('\n', "\r\n");
        assert_eq!(parse(&text), parse(V10));
    }

    #[test]
    fn blocks_without_a_name_are_skipped() {
        let nameless = line("", "4 KiB", 0x1000, None);
        let text = format!("{V7}{nameless}\n");
        assert_eq!(parse(&text), parse(V7));
    }

    #[test]
    fn a_line_that_is_not_understood_is_an_error() {
        let bad = [
            "pc.ram".to_owned(),
            line("a", "4 XiB", 0x1000, None),
            line("a", "3 KiB", 0x1000, None),
            line("a", "1 KiB", 0x1000, None),
            line("a", "4 KiB", 0, None),
            line("a\tb", "4 KiB", 0x1000, None),
            line(&"x".repeat(256), "4 KiB", 0x1000, None),
            line("a", "4 KiB", 0x1000, Some((0x10_0000, "rw"))),
            line("a", "4 KiB", 0x1000, None).replace("0x00", "0x0"),
        ];
        for bad in bad {
            let error = parse(&format!("{V7}{bad}\n")).unwrap_err();
            assert!(error.starts_with("the line "), "{bad}: {error}");
        }
        for bad in [
            line("a", "4 KiB", 0x1000, None),
            line("a", "4 KiB", 0x1000, Some((0, "rw"))),
            line("a", "4 KiB", 0x1000, Some((0x1001, "rw"))),
            line("a", "4 KiB", 0x1000, Some((0x1000, "x"))),
            line("a", "4 KiB", u64::MAX - 0xfff, Some((0x1000, "rw"))),
        ] {
            let error = parse(&format!("{V10}{bad}\n")).unwrap_err();
            assert!(error.starts_with("the line "), "{bad}: {error}");
        }
        for bad in ["", "unknown command: 'info ramblock'", "Block Name PSize"] {
            assert!(parse(bad).unwrap_err().contains("first line"), "{bad}");
        }
        let twice = line("pc.ram", "4 KiB", 0x1000, None);
        let error = parse(&format!("{V7}{twice}\n")).unwrap_err();
        assert_eq!(error, "two blocks are named \"pc.ram\"");
        let many: String = (0..=MAX_BLOCKS)
            .map(|count| line(&count.to_string(), "4 KiB", 0x1000, None) + "\n")
            .collect();
        let header = V7.lines().next().unwrap();
        let error = parse(&format!("{header}\n{many}")).unwrap_err();
        assert!(error.starts_with("more than"), "{error}");
    }

    /// As QEMU's `ram_block_format` prints a block.
    fn line(name: &str, page: &str, total: u64, host: Option<(u64, &str)>) -> String {
        let host = host.map_or(String::new(), |(host, flag)| {
            format!(" 0x{host:016x} {flag:>3}")
        });
        format!(
            "{name:>24} {page:>8}  0x{:016x} 0x{total:016x} 0x{total:016x}{host}",
            0
        )
    }

    proptest! {
        /// Also with names that look like the other columns.
        #[test]
        fn what_qemu_prints_is_parsed(
            name in "[!-~]([ -~]{0,60}[!-~])?|0000:00:0[0-9][.]0/[a-z.-]{1,200}|4 KiB  0x0000000000000001",
            page in prop::sample::select(&[("4 KiB", 4096), ("2 MiB", 2 << 20), ("1 GiB", 1 << 30)][..]),
            pages in 1..1u64 << 40,
            host in prop::option::of((1..1u64 << 40, any::<bool>())),
        ) {
            let header = if host.is_some() { V10 } else { V7 }.lines().next().unwrap_or_default();
            let host = host.map(|(page, read_only)| (page << 12, read_only));
            let printed = line(&name, page.0, pages << 12,
                host.map(|(host, read_only)| (host, if read_only { "ro" } else { "rw" })));
            let expected = RamBlockInfo {
                name,
                page_size: page.1,
                offset: 0,
                used: pages << 12,
                total: pages << 12,
                host: host.map(|host| host.0),
                read_only: host.map(|host| host.1),
            };
            prop_assert_eq!(parse(&format!("{header}\n{printed}\n")), Ok(vec![expected]));
        }
    }
}
