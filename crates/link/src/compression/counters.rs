//! What compression has saved, as several threads count it.

use std::sync::atomic::{AtomicU64, Ordering};

use hikkoshi_wire::CompressionMethod;

/// Bytes before and after compression, by method. Each number only grows; readers need a recent
/// value only.
#[derive(Debug, Default)]
pub struct CompressionCounters {
    lz4: MethodCounters,
    zstd: MethodCounters,
}

/// Bytes before and after compression by one method.
#[derive(Debug, Default)]
pub struct MethodCounters {
    content: AtomicU64,
    compressed: AtomicU64,
}

impl CompressionCounters {
    /// Adds `content` bytes of pages that were sent as `compressed` bytes.
    pub fn add(&self, method: CompressionMethod, content: u64, compressed: u64) {
        let counters = self.of(method);
        counters.content.fetch_add(content, Ordering::Relaxed);
        counters.compressed.fetch_add(compressed, Ordering::Relaxed);
    }

    /// The numbers of `method`.
    pub fn of(&self, method: CompressionMethod) -> &MethodCounters {
        match method {
            CompressionMethod::Lz4 => &self.lz4,
            CompressionMethod::Zstd => &self.zstd,
        }
    }
}

impl MethodCounters {
    /// Bytes of pages.
    pub fn content(&self) -> u64 {
        self.content.load(Ordering::Relaxed)
    }

    /// The bytes to which they were compressed.
    pub fn compressed(&self) -> u64 {
        self.compressed.load(Ordering::Relaxed)
    }
}
