//! Whether background pages will be compressed, and what that makes of them.

use hikkoshi_engine::{Compression, SourceOptions};
use hikkoshi_wire::CompressionMethod;

use crate::costs::PAGE_BYTES;
use crate::inputs::Line;

/// `auto` compresses if it takes at most this part of the time, as the engine does.
const BEGIN: f64 = 0.75;

/// What a method makes of the guest's content, as measured on a sample of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CompressedPages {
    /// The method.
    pub method: CompressionMethod,
    /// What becomes of a page, in bytes.
    pub page_bytes: f64,
    /// How long compressing a page takes, in seconds.
    pub page_seconds: f64,
}

impl CompressedPages {
    /// A sample of `content` bytes has become `compressed` bytes in so many seconds.
    #[must_use]
    pub fn of_sample(
        method: CompressionMethod,
        content: u64,
        compressed: u64,
        seconds: f64,
    ) -> Self {
        let pages = crate::precopy::float(content.max(1)) / PAGE_BYTES;
        Self {
            method,
            page_bytes: crate::precopy::float(compressed) / pages,
            page_seconds: seconds / pages,
        }
    }
}

/// What a migration with these options compresses over `line`, if anything. Reading a page takes
/// `read_page` seconds. `samples` has what each method makes of the guest.
#[must_use]
pub fn choose_compression(
    samples: &[CompressedPages],
    read_page: f64,
    line: &Line,
    options: &SourceOptions,
) -> Option<CompressedPages> {
    match options.compression {
        Compression::Off => None,
        Compression::Always(method) => samples.iter().find(|it| it.method == method).copied(),
        Compression::Auto => {
            let limit = options
                .bandwidth
                .map_or(f64::INFINITY, crate::precopy::float);
            let rate = line.rate.likely.min(limit).max(1.0);
            let links = f64::from(options.links.max(1));
            let page = |bytes: f64, seconds: f64| (bytes / rate).max(seconds / links);
            let plain = page(PAGE_BYTES, read_page);
            let best = samples
                .iter()
                .map(|it| (page(it.page_bytes, read_page + it.page_seconds), it))
                .min_by(|one, two| one.0.total_cmp(&two.0));
            best.filter(|(seconds, _)| *seconds < plain * BEGIN)
                .map(|(_, it)| *it)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Span;

    const SAMPLES: [CompressedPages; 2] = [
        CompressedPages {
            method: CompressionMethod::Lz4,
            page_bytes: 2048.0,
            page_seconds: 5e-6,
        },
        CompressedPages {
            method: CompressionMethod::Zstd,
            page_bytes: 1365.0,
            page_seconds: 11e-6,
        },
    ];

    fn chosen(compression: Compression, rate: f64) -> Option<CompressionMethod> {
        let line = Line {
            rate: Span::exactly(rate),
            round_trip: Span::exactly(1e-3),
            open_link: Span::exactly(1e-3),
        };
        let options = SourceOptions {
            compression,
            links: 1,
            ..SourceOptions::default()
        };
        choose_compression(&SAMPLES, 1e-6, &line, &options).map(|it| it.method)
    }

    #[test]
    fn the_slower_the_line_the_more_is_compressed() {
        let (lz4, zstd) = (CompressionMethod::Lz4, CompressionMethod::Zstd);
        for (rate, expected) in [(12e6, Some(zstd)), (300e6, Some(lz4)), (3e9, None)] {
            assert_eq!(chosen(Compression::Auto, rate), expected, "{rate}");
            assert_eq!(chosen(Compression::Off, rate), None);
            assert_eq!(chosen(Compression::Always(zstd), rate), Some(zstd));
        }
    }
}
