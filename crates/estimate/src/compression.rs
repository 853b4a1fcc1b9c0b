//! Whether background pages will be compressed, and what that makes of them.

use hikkoshi_engine::{Compression, SourceOptions};

use crate::costs::PAGE_BYTES;
use crate::float::float;
use crate::inputs::{CompressedPages, Line};

/// `auto` compresses if it takes at most this part of the time, as the engine does.
const BEGIN: f64 = 0.75;

/// What `auto` sends before it compresses: what the buffers of each link take at once, in bytes,
/// and what the line carries in so many seconds, in which it is measured.
const BUFFERED: f64 = 4e6;
const MEASURED: f64 = 0.15;

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
            let limit = options.bandwidth.map_or(f64::INFINITY, float);
            let rate = line.rate.likely.min(limit).max(1.0);
            let links = f64::from(options.links.max(1));
            let page = |bytes: f64, seconds: f64| (bytes / rate).max(seconds / links);
            let plain = page(PAGE_BYTES, read_page);
            let best = samples
                .iter()
                .map(|it| (page(it.page_bytes, read_page + it.page_seconds), it))
                .min_by(|one, two| one.0.total_cmp(&two.0));
            let (_, best) = best.filter(|(seconds, _)| *seconds < plain * BEGIN)?;
            Some(CompressedPages {
                sent_before: links * BUFFERED + rate * MEASURED,
                ..*best
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Span;
    use hikkoshi_wire::CompressionMethod;

    const SAMPLES: [CompressedPages; 2] = [
        CompressedPages {
            method: CompressionMethod::Lz4,
            page_bytes: 2048.0,
            page_seconds: 5e-6,
            sent_before: 0.0,
        },
        CompressedPages {
            method: CompressionMethod::Zstd,
            page_bytes: 1365.0,
            page_seconds: 11e-6,
            sent_before: 0.0,
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
