//! Chooses the RAM blocks that are measured.

use hikkoshi_linux::HostAddr;
use hikkoshi_pages::RamLayout;

use super::error::MeasureError;

/// The addresses of blocks in QEMU, in layout order.
type Hosts = Vec<HostAddr>;

/// The layout of the named blocks of `all`, and their addresses; of all blocks, if none is named.
/// The memory of a device has the device's path in its name (`0000:00:02.0/vga.vram`); the part
/// after it is enough.
pub(super) fn choose(
    all: &RamLayout,
    addresses: &[u64],
    names: &[String],
) -> Result<(RamLayout, Hosts), MeasureError> {
    let is_named = |id: &str, name: &String| {
        id == name || id.rsplit('/').next().is_some_and(|last| last == name)
    };
    let unknown = names.iter().find(|name| {
        let mut blocks = all.blocks();
        !blocks.any(|(block, _)| is_named(&block.id, name))
    });
    if let Some(name) = unknown {
        return Err(MeasureError::NoBlock {
            name: name.clone(),
            known: all.blocks().map(|(block, _)| block.id.clone()).collect(),
        });
    }
    let (blocks, hosts) = all
        .blocks()
        .zip(addresses)
        .filter(|((block, _), _)| {
            names.is_empty() || names.iter().any(|name| is_named(&block.id, name))
        })
        .map(|((block, _), address)| (block.clone(), HostAddr(*address)))
        .unzip();
    let layout = RamLayout::new(blocks).map_err(|source| MeasureError::Layout { source })?;
    Ok((layout, hosts))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hikkoshi_pages::RamBlock;

    fn layout() -> RamLayout {
        let block = |id: &str| RamBlock::new(id, 1 << 20, 4096);
        RamLayout::new(vec![
            block("pc.ram"),
            block("0000:00:02.0/vga.vram"),
            block("vga.rom"),
        ])
        .unwrap()
    }

    fn chosen(names: &[&str]) -> Result<Vec<(String, u64)>, String> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let (layout, hosts) =
            choose(&layout(), &[10, 20, 30], &names).map_err(|error| error.to_string())?;
        let ids = layout.blocks().map(|(block, _)| block.id.clone());
        Ok(ids.zip(hosts.iter().map(|host| host.0)).collect())
    }

    #[test]
    fn a_block_is_named_with_or_without_its_device() {
        let video = ("0000:00:02.0/vga.vram".to_owned(), 20);
        assert_eq!(chosen(&["vga.vram"]), Ok(vec![video.clone()]));
        assert_eq!(chosen(&["0000:00:02.0/vga.vram"]), Ok(vec![video.clone()]));
        let two = chosen(&["vga.vram", "pc.ram"]);
        assert_eq!(two, Ok(vec![("pc.ram".to_owned(), 10), video]));
        assert_eq!(chosen(&[]).map(|all| all.len()), Ok(3));
    }

    #[test]
    fn an_unknown_block_is_an_error_with_the_known_names() {
        let error = chosen(&["pc.ram", "ram"]).unwrap_err();
        for part in ["\"ram\"", "pc.ram, 0000:00:02.0/vga.vram, vga.rom"] {
            assert!(error.contains(part), "{error}");
        }
    }
}
