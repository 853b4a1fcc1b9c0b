//! Splits page ranges into content and zero pages.

use std::io;

use hikkoshi_pages::{PAGE_SIZE, PageRange, is_zero};

use crate::guest_ram::GuestRam;

/// Adjacent pages of one kind, at most as many as a reader's chunk.
#[derive(Debug)]
pub enum PageRun<'a> {
    /// Pages with content.
    Data(PageRange, &'a [u8]),
    /// Pages that hold only zeros.
    Zeros(PageRange),
}

/// Reads guest memory in chunks and splits them by content.
#[derive(Debug)]
pub struct PageReader {
    buffer: Vec<u8>,
}

impl PageReader {
    /// A reader whose runs have at most `chunk` pages.
    pub fn new(chunk: usize) -> Self {
        Self {
            buffer: vec![0; chunk * PAGE_SIZE],
        }
    }

    /// Calls `each` with the runs of `range`, ascending.
    ///
    /// The content is a snapshot taken by `pread`: a page that the guest
    /// writes meanwhile may be torn in it, and is then dirty again.
    ///
    /// `E` is the caller's error; a failed read is converted into it.
    pub fn runs<E: From<io::Error>>(
        &mut self,
        ram: &GuestRam,
        range: PageRange,
        mut each: impl FnMut(PageRun<'_>) -> Result<(), E>,
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
                    each(PageRun::Zeros(run))?;
                } else {
                    each(PageRun::Data(
                        run,
                        &content[from * PAGE_SIZE..to * PAGE_SIZE],
                    ))?;
                }
                from = to;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hikkoshi_pages::{PAGE_BYTES, Page, RamBlock, RamLayout};
    use std::os::unix::fs::FileExt;

    use crate::ram_file::RamFile;

    /// Two blocks of ten pages; those in `data` begin with their number.
    fn files(data: &[u64]) -> GuestRam {
        let block = |id: &str| RamBlock::new(id, 10 * PAGE_BYTES, PAGE_BYTES);
        let layout = RamLayout::new(vec![block("a"), block("b")]).unwrap();
        let files = (0..2).map(|nth| {
            let file = tempfile::tempfile_in("/dev/shm").unwrap();
            file.set_len(10 * PAGE_BYTES).unwrap();
            for page in data.iter().filter(|&page| page / 10 == nth) {
                let at = page % 10 * PAGE_BYTES;
                file.write_all_at(&page.to_le_bytes(), at).unwrap();
            }
            RamFile::new(file, 0)
        });
        GuestRam::new(layout, files.collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn runs_are_of_one_kind_and_no_longer_than_a_chunk() {
        let ram = files(&[3, 4, 8, 9, 10, 11, 12]);
        let mut reader = PageReader::new(4);
        let mut runs = Vec::new();
        let range = |from, to| PageRange::new(Page::new(from), Page::new(to));
        reader
            .runs(&ram, range(1, 20), |run| -> io::Result<()> {
                match run {
                    PageRun::Zeros(range) => runs.push((range, false)),
                    PageRun::Data(range, content) => {
                        for (page, content) in range.iter().zip(content.chunks(PAGE_SIZE)) {
                            assert_eq!(content[..8], page.index().to_le_bytes());
                        }
                        assert_eq!(content.len() as u64, range.bytes());
                        runs.push((range, true));
                    }
                }
                Ok(())
            })
            .unwrap();
        assert_eq!(
            runs,
            [
                (range(1, 3), false),
                (range(3, 5), true),
                (range(5, 8), false),
                (range(8, 9), true),
                (range(9, 13), true),
                (range(13, 17), false),
                (range(17, 20), false),
            ]
        );
    }

    #[test]
    fn errors_end_it() {
        let ram = files(&[3]);
        let mut reader = PageReader::new(4);
        let mut calls = 0;
        let all = ram.layout().all();
        let stopped = reader.runs(&ram, all, |_| {
            calls += 1;
            Err(io::Error::other("enough"))
        });
        assert_eq!(stopped.unwrap_err().to_string(), "enough");
        assert_eq!(calls, 1);
        // The file was truncated.
        ram.backings()[1]
            .file()
            .unwrap()
            .file()
            .set_len(PAGE_BYTES)
            .unwrap();
        let cut = reader.runs(&ram, all, |_| Ok::<_, io::Error>(()));
        assert_eq!(cut.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
