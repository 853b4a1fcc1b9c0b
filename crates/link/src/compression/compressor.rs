//! Compresses the content of frames.

use std::fmt;

use hikkoshi_pages::PAGE_SIZE;
use hikkoshi_wire::{CompressionMethod, MAX_PAGES_PER_FRAME};
use lz4_flex::block::{CompressTable, compress_into_with_table, get_maximum_output_size};
use zstd_safe::{CCtx, CParameter};

/// The fastest of zstd's levels with an entropy coder for everything.
const ZSTD_LEVEL: i32 = 1;

/// The largest content of a frame.
#[allow(clippy::cast_possible_truncation)]
const MOST_CONTENT: usize = MAX_PAGES_PER_FRAME as usize * PAGE_SIZE;

/// Compresses with contexts and a buffer that are reused: after the first use of a method nothing
/// is allocated.
#[derive(Default)]
pub struct Compressor {
    /// For inputs below 64 KiB, and for longer ones: the first is quicker to clear.
    small: Option<CompressTable>,
    large: Option<CompressTable>,
    zstd: Option<CCtx<'static>>,
    output: Vec<u8>,
}

impl fmt::Debug for Compressor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compressor").finish_non_exhaustive()
    }
}

impl Compressor {
    /// A compressor that has allocated nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Compresses `content`, at most what a frame holds. `None`: it does not become smaller.
    pub fn compress(&mut self, method: CompressionMethod, content: &[u8]) -> Option<&[u8]> {
        if content.len() > MOST_CONTENT {
            return None;
        }
        let room = get_maximum_output_size(MOST_CONTENT);
        if self.output.len() < room {
            self.output.resize(room, 0);
        }
        let len = match method {
            CompressionMethod::Lz4 => self.lz4(content)?,
            CompressionMethod::Zstd => self.zstd(content)?,
        };
        self.output.get(..len).filter(|_| len < content.len())
    }

    fn lz4(&mut self, content: &[u8]) -> Option<usize> {
        let table = if content.len() < usize::from(u16::MAX) {
            self.small.get_or_insert_with(CompressTable::small)
        } else {
            self.large.get_or_insert_with(CompressTable::large)
        };
        compress_into_with_table(content, &mut self.output, table).ok()
    }

    fn zstd(&mut self, content: &[u8]) -> Option<usize> {
        if self.zstd.is_none() {
            // Without memory for a context the pages travel as they are.
            let mut context = CCtx::try_create()?;
            let level = CParameter::CompressionLevel(ZSTD_LEVEL);
            context.set_parameter(level).ok()?;
            self.zstd = Some(context);
        }
        // Less room than zstd needs for its work would make it slower.
        let context = self.zstd.as_mut()?;
        context.compress2(&mut self.output[..], content).ok()
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::compression::Decompressor;

    /// Content that becomes smaller, and content that does not.
    fn contents(len: usize) -> [(Vec<u8>, bool); 3] {
        let mut state = 1u64;
        let random = std::iter::repeat_with(|| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[0]
        });
        let random: Vec<u8> = random.take(len).collect();
        let mut mixed = random.clone();
        mixed[len / 3..].fill(7);
        let text = b"all work and no play makes jack a dull boy; ";
        let text = text.iter().copied().cycle().take(len).collect();
        [(random, false), (mixed, true), (text, true)]
    }

    #[test]
    fn content_that_becomes_smaller_is_restored() {
        let (mut compressor, mut decompressor) = (Compressor::new(), Decompressor::new());
        for pages in [1, 8, 15, 16, 17, 256, 1] {
            for (content, is_smaller) in contents(pages * PAGE_SIZE) {
                for method in CompressionMethod::ALL {
                    let compressed = compressor.compress(method, &content);
                    assert_eq!(compressed.is_some(), is_smaller, "{method:?} {pages}");
                    let Some(compressed) = compressed else {
                        continue;
                    };
                    assert!(compressed.len() < content.len());
                    let mut restored = vec![1; content.len()];
                    decompressor
                        .decompress(method, compressed, &mut restored)
                        .unwrap();
                    assert!(restored == content, "{method:?} {pages}");
                }
            }
        }
    }

    #[test]
    fn more_than_a_frame_is_not_compressed() {
        let content = vec![0; MOST_CONTENT + 1];
        for method in CompressionMethod::ALL {
            assert_eq!(Compressor::new().compress(method, &content), None);
        }
    }
}
