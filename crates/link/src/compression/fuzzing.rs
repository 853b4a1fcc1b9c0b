//! The function of the fuzz target `compression_decompress` (`fuzz/fuzz_targets`): properties of
//! all bytes that a peer can send as compressed pages.
//!
//! The property tests below run it on random input, and on the kept fuzz inputs.

use hikkoshi_pages::PAGE_SIZE;
use hikkoshi_wire::CompressionMethod;

use crate::compression::{Compressor, Decompressor};

/// Decompresses bytes of a peer as the content of a few pages, by the method and for the number of
/// pages that the first byte says. It fails, or fills the pages; what fills them can be compressed
/// again and restored.
#[allow(clippy::missing_panics_doc, reason = "a panic is what is searched for")]
pub fn decompress(bytes: &[u8]) {
    let Some((&first, bytes)) = bytes.split_first() else {
        return;
    };
    let method = CompressionMethod::ALL[usize::from(first & 1)];
    let len = (usize::from(first >> 1) % 8 + 1) * PAGE_SIZE;
    // The guard behind it is not to be written.
    let mut content = vec![0xa5; len + PAGE_SIZE];
    let (pages, guard) = content.split_at_mut(len);
    let mut decompressor = Decompressor::new();
    let result = decompressor.decompress(method, bytes, pages);
    assert!(guard.iter().all(|&byte| byte == 0xa5));
    if result.is_err() {
        return;
    }
    let mut compressor = Compressor::new();
    for method in CompressionMethod::ALL {
        if let Some(compressed) = compressor.compress(method, pages) {
            let mut again = vec![0; len];
            let result = decompressor.decompress(method, compressed, &mut again);
            assert!(result.is_ok() && again == pages, "{method:?}");
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A first byte for `method` and `pages`, and these pages compressed.
    fn input(method: CompressionMethod, pages: usize, content: &[u8]) -> Vec<u8> {
        let content: Vec<u8> = content
            .iter()
            .copied()
            .cycle()
            .take(pages * PAGE_SIZE)
            .collect();
        let mut compressor = Compressor::new();
        let compressed = compressor.compress(method, &content).unwrap_or_default();
        let method = u8::from(method == CompressionMethod::Zstd);
        let first = u8::try_from((pages - 1) << 1).unwrap() | method;
        [&[first][..], compressed].concat()
    }

    proptest! {
        #[test]
        fn any_bytes_keep_the_properties(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            decompress(&bytes);
        }

        #[test]
        fn damaged_pages_keep_the_properties(
            method in prop::sample::select(CompressionMethod::ALL.to_vec()),
            pages in 1..=8usize,
            content in prop::collection::vec(any::<u8>(), 1..300),
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            cut in any::<prop::sample::Index>(),
        ) {
            let mut bytes = input(method, pages, &content);
            for (at, byte) in damage {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            bytes.truncate(1 + cut.index(2 * bytes.len()));
            decompress(&bytes);
        }
    }

    #[test]
    fn the_kept_fuzz_inputs_pass() {
        hikkoshi_fuzz_replay::replay("compression", &[("decompress", decompress)]);
    }
}
