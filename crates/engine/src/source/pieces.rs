//! From page ranges to what is worth sending: content, or a mark for zeros.

use std::io;

use hikkoshi_pages::{PAGE_SIZE, PageRange, is_zero};

use crate::ram::RamFiles;

/// Adjacent pages of one kind, not more than a reader's chunk.
#[derive(Debug)]
pub(super) enum Piece<'a> {
    /// Pages with content.
    Data(PageRange, &'a [u8]),
    /// Pages that hold only zeros.
    Zeros(PageRange),
}

/// Reads guest memory in chunks and splits them by content.
#[derive(Debug)]
pub(super) struct PieceReader {
    buffer: Vec<u8>,
}

impl PieceReader {
    /// A reader whose pieces have at most `chunk` pages.
    pub(super) fn new(chunk: usize) -> Self {
        Self {
            buffer: vec![0; chunk * PAGE_SIZE],
        }
    }

    /// Calls `each` with the pieces of `range`, ascending.
    ///
    /// The content is a snapshot taken by `pread`: a page that the guest
    /// writes meanwhile may be torn in it, and is then dirty again.
    ///
    /// `E` is the caller's error; a failed read becomes one.
    pub(super) fn pieces<E: From<io::Error>>(
        &mut self,
        ram: &RamFiles,
        range: PageRange,
        mut each: impl FnMut(Piece<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let chunk = (self.buffer.len() / PAGE_SIZE) as u64;
        for part in range.chunks(chunk) {
            let pages = usize::try_from(part.len()).unwrap_or(usize::MAX);
            let content = &mut self.buffer[..pages * PAGE_SIZE];
            ram.read(part, content)?;
            let zero = |page: usize| is_zero(&content[page * PAGE_SIZE..][..PAGE_SIZE]);
            let mut from = 0;
            while from < pages {
                let kind = zero(from);
                let mut to = from + 1;
                while to < pages && zero(to) == kind {
                    to += 1;
                }
                let run = PageRange::from_len(
                    part.start().saturating_add(from as u64),
                    (to - from) as u64,
                );
                if kind {
                    each(Piece::Zeros(run))?;
                } else {
                    each(Piece::Data(run, &content[from * PAGE_SIZE..to * PAGE_SIZE]))?;
                }
                from = to;
            }
        }
        Ok(())
    }
}
