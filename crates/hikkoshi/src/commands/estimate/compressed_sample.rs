//! What each compression method makes of a sample of the guest's content.

use std::time::{Duration, Instant};

use hikkoshi_engine::Compression;
use hikkoshi_estimate::CompressedPages;
use hikkoshi_link::Compressor;
use hikkoshi_wire::CompressionMethod;

/// Collects the sample.
#[derive(Debug)]
pub(super) struct CompressedSample {
    compressor: Compressor,
    methods: Vec<Sampled>,
}

#[derive(Debug)]
struct Sampled {
    method: CompressionMethod,
    content: u64,
    compressed: u64,
    time: Duration,
}

impl CompressedSample {
    /// A sample by the methods that a migration with this option may use.
    pub(super) fn new(compression: Compression) -> Self {
        let may_use = |method: &CompressionMethod| match compression {
            Compression::Off => false,
            Compression::Auto => true,
            Compression::Always(only) => *method == only,
        };
        let methods = CompressionMethod::ALL.into_iter().filter(may_use);
        Self {
            compressor: Compressor::new(),
            methods: methods
                .map(|method| Sampled {
                    method,
                    content: 0,
                    compressed: 0,
                    time: Duration::ZERO,
                })
                .collect(),
        }
    }

    /// Compresses a part of the content.
    pub(super) fn add(&mut self, content: &[u8]) {
        for sampled in &mut self.methods {
            let begun = Instant::now();
            let compressed = self.compressor.compress(sampled.method, content);
            sampled.time += begun.elapsed();
            sampled.content += content.len() as u64;
            sampled.compressed += compressed.unwrap_or(content).len() as u64;
        }
    }

    /// What it has found; nothing if there was no content.
    pub(super) fn pages(&self) -> Vec<CompressedPages> {
        let of = |it: &Sampled| {
            let seconds = it.time.as_secs_f64();
            CompressedPages::of_sample(it.method, it.content, it.compressed, seconds)
        };
        let sampled = self.methods.iter().filter(|it| it.content > 0);
        sampled.map(of).collect()
    }
}
