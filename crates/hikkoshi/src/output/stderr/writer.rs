//! Writes lines, and below them a progress bar on a terminal.
//!
//! The cursor rests at the beginning of the bar. If the terminal becomes narrower, a terminal that
//! wraps lines again wraps the bar, and the cursor stays at its first character; other terminals
//! cut it off. So "erase from the cursor to the end of the screen" removes all of it in both.
//! Automatic wrapping is off while the bar is written: the terminal may have become narrower since
//! its width was read.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags};

use super::queue::{Item, ProgressBar, ProgressItem};
use crate::output::colours::{self, Colour};
use crate::output::line_format;

/// To the beginning of the line, and erase from there to the end of the screen (ED).
const ERASE: &str = "\r\x1b[J";

/// Erase from the cursor to the end of the screen (ED).
const ERASE_REST: &str = "\x1b[J";

/// Automatic wrapping (DECAWM) off, and on.
const NO_WRAP: &str = "\x1b[?7l";
const WRAP: &str = "\x1b[?7h";

/// Writes to standard error, or what stands for it in tests.
#[derive(Debug)]
pub(super) struct Writer<W> {
    to: W,
    /// The columns of the terminal now.
    columns: fn() -> usize,
    bar: Option<Box<dyn ProgressBar>>,
    is_drawn: bool,
    has_colours: bool,
}

impl<W: Write + AsFd> Writer<W> {
    pub(super) fn new(to: W, columns: fn() -> usize) -> Self {
        Self {
            to,
            columns,
            bar: None,
            is_drawn: false,
            has_colours: colours::are_wanted(),
        }
    }

    /// Writes these items.
    pub(super) fn write(&mut self, items: VecDeque<Item>) {
        for item in items {
            match item {
                Item::Line(line) | Item::Progress(ProgressItem::Line(line)) => self.line(&line),
                Item::Dropped(lines) => self.line(&line_format::dropped_lines(lines)),
                Item::Progress(ProgressItem::Bar(bar)) => self.bar = Some(bar),
                Item::Progress(ProgressItem::NoBar) => self.bar = None,
            }
        }
        self.draw();
    }

    /// Writes a line with one call: the guard process writes there, too.
    fn line(&mut self, line: &str) {
        let erase = match std::mem::take(&mut self.is_drawn) {
            true => ERASE,
            false => "",
        };
        write_all(&mut self.to, format!("{erase}{line}\n").as_bytes());
    }

    /// Draws the bar below the last line. Each time: the terminal may have been resized.
    fn draw(&mut self) {
        let text = match &self.bar {
            Some(bar) => {
                let text = bar.text((self.columns)());
                let text = match bar.is_alarm() && self.has_colours {
                    true => Colour::Alarm.paint(&text, true).into_owned(),
                    false => text,
                };
                format!("\r{NO_WRAP}{text}{ERASE_REST}{WRAP}\r")
            }
            None if self.is_drawn => ERASE.to_owned(),
            None => return,
        };
        self.is_drawn = self.bar.is_some();
        write_all(&mut self.to, text.as_bytes());
    }
}

/// Writes all of it, however long that takes. Errors are ignored: a terminal that was closed must
/// not cost a guest.
pub(super) fn write_all(to: &mut (impl Write + AsFd), mut bytes: &[u8]) {
    while !bytes.is_empty() {
        match to.write(bytes) {
            Ok(0) => return,
            Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // Another process has made the file non-blocking.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let mut poll = [PollFd::new(to, PollFlags::OUT)];
                match rustix::event::poll(&mut poll, None) {
                    Ok(_) | Err(rustix::io::Errno::INTR) => {}
                    Err(_) => return,
                }
            }
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::stderr::queue::Queue;
    use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Read, pipe};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    /// A bar that fills its line, to the column that stays free.
    #[derive(Debug)]
    struct FullBar;

    impl ProgressBar for FullBar {
        fn text(&self, columns: usize) -> String {
            let rest = columns.saturating_sub(5);
            format!("bar[{}", "=".repeat(rest))
                .chars()
                .take(columns - 1)
                .collect()
        }
    }

    fn line(text: &str) -> Item {
        Item::Line(text.into())
    }

    fn bar() -> Item {
        Item::Progress(ProgressItem::Bar(Box::new(FullBar)))
    }

    /// What a person sees on a terminal, row by row, with the rows that have scrolled off. It wraps
    /// its lines again when it is resized.
    struct Terminal {
        screen: avt::Terminal,
        writer: Writer<PipeWriter>,
        bytes: PipeReader,
    }

    impl Terminal {
        fn new(columns: fn() -> usize) -> Self {
            let (bytes, to) = pipe().unwrap();
            rustix::io::ioctl_fionbio(&bytes, true).unwrap();
            Self {
                screen: avt::Terminal::with_scrollback(columns(), 8, Some(100)).unwrap(),
                writer: Writer::new(to, columns),
                bytes,
            }
        }

        fn write(&mut self, items: impl IntoIterator<Item = Item>) {
            self.writer.write(items.into_iter().collect());
            let mut bytes = Vec::new();
            // It ends with "would block".
            let _ = self.bytes.read_to_end(&mut bytes);
            // As the line discipline of a terminal does.
            let text = String::from_utf8(bytes).unwrap().replace('\n', "\r\n");
            self.screen.feed(&*text);
        }

        fn resize(&mut self, columns: usize) {
            self.screen.resize(columns, 8);
        }

        fn rows(&self) -> Vec<String> {
            let lines = self.screen.screen().all_lines();
            let rows = lines.map(|line| line.text().trim_end().to_owned());
            let mut rows: Vec<_> = rows.collect();
            while rows.last().is_some_and(String::is_empty) {
                rows.pop();
            }
            rows
        }
    }

    #[test]
    fn lines_come_above_the_bar() {
        let mut terminal = Terminal::new(|| 20);
        terminal.write([line("one"), bar()]);
        assert_eq!(terminal.rows(), ["one", "bar[==============="]);
        terminal.write([line("two"), line("three")]);
        let all = ["one", "two", "three", "bar[==============="];
        assert_eq!(terminal.rows(), all);
        terminal.write([Item::Progress(ProgressItem::NoBar)]);
        terminal.write([line("four")]);
        assert_eq!(terminal.rows(), ["one", "two", "three", "four"]);
    }

    /// The width is read before the bar is written, and the terminal may be resized in between.
    #[test]
    fn nothing_is_left_of_a_bar_when_the_terminal_is_resized() {
        static COLUMNS: AtomicUsize = AtomicUsize::new(60);
        let mut terminal = Terminal::new(|| COLUMNS.load(Ordering::Relaxed));
        terminal.write([line("one"), bar()]);
        let is_only_bar = |terminal: &Terminal, columns: usize, lines: &[&str]| {
            let rows = terminal.rows();
            let (bar, above) = rows.split_last().unwrap();
            assert_eq!(above, lines, "{columns} columns");
            assert_eq!(bar, &FullBar.text(columns), "{columns} columns");
        };
        is_only_bar(&terminal, 60, &["one"]);
        let mut lines = vec!["one"];
        for columns in [40, 12, 7, 50, 13, 60, 8] {
            terminal.resize(columns);
            // Drawn with the width before, because of a line, and with the new one.
            terminal.write([bar()]);
            terminal.write([line("two")]);
            lines.push("two");
            COLUMNS.store(columns, Ordering::Relaxed);
            terminal.write([bar()]);
            is_only_bar(&terminal, columns, &lines);
        }
        terminal.resize(9);
        terminal.write([Item::Progress(ProgressItem::NoBar)]);
        assert!(
            !terminal.rows().concat().contains(['=', '[']),
            "{:?}",
            terminal.rows()
        );
    }

    /// The pipe is full, and no process reads it: the threads that report do not wait, and what is
    /// missing is counted.
    #[test]
    fn a_pipe_that_no_process_reads_delays_no_thread() {
        let (reader, to) = pipe().unwrap();
        let queue = Arc::new(Queue::default());
        let taken = Arc::clone(&queue);
        thread::spawn(move || {
            let mut writer = Writer::new(to, || 80);
            loop {
                writer.write(taken.take());
            }
        });
        let lines = 40_000;
        for number in 0..lines {
            queue.line(format!("{number} {}", "x".repeat(200)));
        }
        queue.important_line("the end".into());
        assert!(!queue.flush(std::time::Duration::from_millis(1)));
        let (mut written, mut missing) = (0, 0);
        for line in BufReader::new(reader).lines() {
            let line = line.unwrap();
            if line == "the end" {
                break;
            }
            match line.strip_prefix("hikkoshi: ") {
                Some(said) => {
                    assert!(said.contains("not written"), "{said}");
                    let number = said.split(' ').next().unwrap();
                    missing += number.parse::<u32>().unwrap();
                }
                None => written += 1,
            }
        }
        assert!(missing > 0 && written > 0, "{missing} {written}");
        assert_eq!(written + missing, lines);
    }

    #[test]
    fn a_file_that_is_not_blocking_gets_everything() {
        let (reader, to) = pipe().unwrap();
        rustix::io::ioctl_fionbio(&to, true).unwrap();
        let written = thread::spawn(move || {
            let mut to = to;
            write_all(&mut to, &vec![b'x'; 1 << 20]);
        });
        let read = BufReader::new(reader).bytes().count();
        written.join().unwrap();
        assert_eq!(read, 1 << 20);
    }

    #[test]
    fn a_reader_that_is_gone_is_no_error() {
        let (mut reader, mut to) = pipe().unwrap();
        let writing = thread::spawn(move || {
            write_all(&mut to, &vec![b'x'; 1 << 20]);
            let mut writer = Writer::new(to.try_clone().unwrap(), || 80);
            writer.write([line("text"), bar()].into());
            to.write(b"text").unwrap_err().kind()
        });
        // It ends while much more is to be written than fits into the pipe.
        reader.read_exact(&mut [0; 100]).unwrap();
        drop(reader);
        assert_eq!(writing.join().unwrap(), io::ErrorKind::BrokenPipe);
    }
}
