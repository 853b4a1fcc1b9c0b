//! Decompresses the content of frames, which a peer sends.

use std::fmt;

use hikkoshi_wire::CompressionMethod;
use thiserror::Error;
use zstd_safe::DCtx;

/// Why content could not be decompressed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DecompressError {
    /// The bytes are not what the method produces, or hold more than the pages do.
    #[error("the content of compressed pages is damaged, or longer than the pages: {reason}")]
    Damaged {
        /// What the library says.
        reason: String,
    },
    /// They hold less than the pages do.
    #[error("the content of compressed pages has {found} bytes instead of {expected}")]
    Length {
        /// Bytes that it holds.
        found: usize,
        /// Bytes of the pages.
        expected: usize,
    },
    /// No memory for a context.
    #[error("allocating memory to decompress pages failed")]
    NoMemory,
}

/// Decompresses with a context that is reused. The peer chooses neither how much memory is needed
/// nor how much is written: both follow from the pages that the frame is for.
#[derive(Default)]
pub struct Decompressor {
    zstd: Option<DCtx<'static>>,
}

impl fmt::Debug for Decompressor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decompressor").finish_non_exhaustive()
    }
}

impl Decompressor {
    /// A decompressor that has allocated nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Decompresses `compressed` into the whole of `content`.
    ///
    /// # Errors
    /// When that is not exactly what it holds; `content` is undefined then.
    pub fn decompress(
        &mut self,
        method: CompressionMethod,
        compressed: &[u8],
        content: &mut [u8],
    ) -> Result<(), DecompressError> {
        let found = match method {
            CompressionMethod::Lz4 => lz4_flex::block::decompress_into(compressed, content)
                .map_err(|error| DecompressError::Damaged {
                    reason: error.to_string(),
                })?,
            CompressionMethod::Zstd => {
                if self.zstd.is_none() {
                    self.zstd = Some(DCtx::try_create().ok_or(DecompressError::NoMemory)?);
                }
                let context = self.zstd.as_mut().ok_or(DecompressError::NoMemory)?;
                context.decompress(content, compressed).map_err(|code| {
                    DecompressError::Damaged {
                        reason: zstd_safe::get_error_name(code).to_owned(),
                    }
                })?
            }
        };
        let expected = content.len();
        if found == expected {
            Ok(())
        } else {
            Err(DecompressError::Length { found, expected })
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::compression::Compressor;

    fn compressed(method: CompressionMethod, len: usize) -> Vec<u8> {
        let content = vec![9; len];
        let mut compressor = Compressor::new();
        compressor.compress(method, &content).unwrap().to_vec()
    }

    #[test]
    fn content_of_another_size_is_refused() {
        for method in CompressionMethod::ALL {
            let mut decompressor = Decompressor::new();
            let bytes = compressed(method, 8192);
            let mut decompress = |len| {
                let mut content = vec![0; len];
                let result = decompressor.decompress(method, &bytes, &mut content);
                result.map(|()| content)
            };
            let (found, expected) = (8192, 12288);
            let shorter = DecompressError::Length { found, expected };
            assert_eq!(decompress(expected), Err(shorter));
            // A bomb: much in few bytes.
            let longer = decompress(4096).unwrap_err();
            assert!(
                matches!(longer, DecompressError::Damaged { .. }),
                "{longer}"
            );
            // The context can be used again after a failure.
            assert_eq!(decompress(8192), Ok(vec![9; 8192]));
        }
    }

    #[test]
    fn a_torn_end_is_refused() {
        for method in CompressionMethod::ALL {
            let bytes = compressed(method, 1 << 20);
            let mut decompressor = Decompressor::new();
            for len in 0..bytes.len() {
                let mut content = vec![0; 1 << 20];
                let result = decompressor.decompress(method, &bytes[..len], &mut content);
                assert!(result.is_err(), "{method:?} {len} of {}", bytes.len());
            }
        }
    }
}
