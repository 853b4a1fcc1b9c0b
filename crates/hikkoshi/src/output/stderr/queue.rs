//! What is to be written to standard error.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The most bytes of lines that wait to be written: some 20,000 lines of a log. They are also the
/// most that the thread takes at once, so that twice as many may be in memory.
const MOST: usize = 4 << 20;

/// What a line takes in memory besides its text, about.
const OVERHEAD: usize = 64;

/// Lines, and the newest progress, in order. No call waits for the thread that writes, except
/// [`flush`](Self::flush).
#[derive(Debug, Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    items: VecDeque<Item>,
    /// Bytes of all lines in `items`.
    bytes: usize,
    /// Lines that were dropped after the last one in `items`.
    dropped: u64,
    progress_has_ended: bool,
    /// The thread writes what it has taken.
    is_writing: bool,
}

/// What is to be written next.
#[derive(Debug)]
pub(super) enum Item {
    /// A line, without its end.
    Line(String),
    /// So many lines were dropped here.
    Dropped(u64),
    /// Progress.
    Progress(ProgressItem),
}

/// How far a migration is.
#[derive(Debug)]
pub(crate) enum ProgressItem {
    /// A line of its own.
    Line(String),
    /// A bar below the last line, in place of the one before.
    Bar(Box<dyn ProgressBar>),
    /// The bar is removed.
    NoBar,
}

/// One line of a terminal.
pub(crate) trait ProgressBar: Debug + Send {
    /// The text: printable ASCII, at most one column less than `columns`.
    fn text(&self, columns: usize) -> String;

    /// Whether something is wrong that must not be overlooked.
    fn is_alarm(&self) -> bool {
        false
    }
}

impl State {
    fn push(&mut self, line: String) {
        if self.dropped > 0 {
            let dropped = std::mem::take(&mut self.dropped);
            self.items.push_back(Item::Dropped(dropped));
        }
        self.bytes += line.len() + OVERHEAD;
        self.items.push_back(Item::Line(line));
    }

    fn is_empty(&self) -> bool {
        self.items.is_empty() && self.dropped == 0
    }
}

impl Queue {
    /// Adds a line, unless too many wait.
    pub(super) fn line(&self, line: String) {
        let mut state = self.lock();
        match state.bytes + line.len() + OVERHEAD <= MOST {
            true => state.push(line),
            false => state.dropped += 1,
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Adds a line, however many wait: for those of which there are a few in one run.
    pub(super) fn important_line(&self, line: String) {
        self.lock().push(line);
        self.changed.notify_all();
    }

    /// Adds progress, in place of the one that waits.
    pub(super) fn progress(&self, item: ProgressItem) {
        let mut state = self.lock();
        if state.progress_has_ended {
            return;
        }
        let mut items = state.items.iter();
        if let Some(older) = items.position(|item| matches!(item, Item::Progress(_))) {
            state.items.remove(older);
        }
        state.items.push_back(Item::Progress(item));
        drop(state);
        self.changed.notify_all();
    }

    /// Removes the bar, and ignores further progress.
    pub(super) fn end_progress(&self) {
        self.progress(ProgressItem::NoBar);
        self.lock().progress_has_ended = true;
    }

    /// Waits for items, and returns all of them. What was taken before is written.
    pub(super) fn take(&self) -> VecDeque<Item> {
        let mut state = self.lock();
        state.is_writing = false;
        self.changed.notify_all();
        while state.is_empty() {
            let woken = self.changed.wait(state);
            state = woken.unwrap_or_else(PoisonError::into_inner);
        }
        state.is_writing = true;
        state.bytes = 0;
        let mut items = std::mem::take(&mut state.items);
        if state.dropped > 0 {
            items.push_back(Item::Dropped(std::mem::take(&mut state.dropped)));
        }
        items
    }

    /// Waits until everything is written; whether it is.
    pub(super) fn flush(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        let mut state = self.lock();
        while !state.is_empty() || state.is_writing {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let woken = self.changed.wait_timeout(state, left);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::thread;

    /// What is taken, as text.
    fn taken(queue: &Queue) -> Vec<String> {
        let text = |item| match item {
            Item::Line(line) => line,
            Item::Dropped(lines) => format!("{lines} dropped"),
            Item::Progress(ProgressItem::Line(line)) => format!("progress {line}"),
            Item::Progress(ProgressItem::Bar(bar)) => bar.text(80),
            Item::Progress(ProgressItem::NoBar) => "no bar".to_owned(),
        };
        queue.take().into_iter().map(text).collect()
    }

    /// A line of a quarter of what the queue takes, and no more of them fit than three.
    fn quarter(name: char) -> String {
        name.to_string().repeat(MOST / 4)
    }

    #[test]
    fn dropped_lines_are_counted_where_they_are_missing() {
        let queue = Queue::default();
        for name in ['a', 'b', 'c', 'd', 'e'] {
            queue.line(quarter(name));
        }
        queue.line("short".into());
        queue.line(quarter('f'));
        let [a, b, c, gap, short, last] = &taken(&queue)[..] else {
            panic!("six items");
        };
        assert_eq!([a, b, c], [&quarter('a'), &quarter('b'), &quarter('c')]);
        assert_eq!([gap, short, last], ["2 dropped", "short", "1 dropped"]);
        // There is room again.
        queue.line(quarter('g'));
        assert_eq!(taken(&queue), [quarter('g')]);
        queue.line("x".repeat(MOST));
        assert_eq!(taken(&queue), ["1 dropped"], "a line that never fits");
    }

    #[test]
    fn important_lines_are_not_dropped() {
        let queue = Queue::default();
        (0..5).for_each(|_| queue.line(quarter('a')));
        queue.important_line("the end".into());
        let taken = taken(&queue);
        assert_eq!(taken[3..], ["2 dropped", "the end"]);
    }

    #[test]
    fn only_the_newest_progress_waits_and_in_order() {
        let queue = Queue::default();
        let progress = |text: &str| queue.progress(ProgressItem::Line(text.into()));
        progress("1");
        queue.line("a".into());
        progress("2");
        progress("3");
        queue.line("b".into());
        assert_eq!(taken(&queue), ["a", "progress 3", "b"]);
        progress("4");
        queue.end_progress();
        progress("5");
        assert_eq!(taken(&queue), ["no bar"]);
    }

    #[test]
    fn a_flush_waits_for_what_is_being_written() {
        let queue = Queue::default();
        assert!(queue.flush(Duration::ZERO));
        queue.line("a".into());
        assert!(!queue.flush(Duration::ZERO), "it was not taken");
        taken(&queue);
        assert!(
            !queue.flush(Duration::from_millis(1)),
            "it may not be written"
        );
        let queue = Arc::new(queue);
        let writer = Arc::clone(&queue);
        thread::spawn(move || writer.take());
        assert!(queue.flush(Duration::from_secs(60)));
        // For the thread.
        queue.line("b".into());
    }

    /// Several threads report more than fits, while one writes: each line is written once and in
    /// the order of its thread, or counted as dropped.
    #[test]
    fn every_line_is_written_or_counted() {
        const THREADS: usize = 4;
        const LINES: u64 = 5000;
        let queue = Arc::new(Queue::default());
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let queue = Arc::clone(&queue);
                thread::spawn(move || {
                    for line in 0..LINES {
                        queue.line(format!("{thread} {line} {}", "x".repeat(1000)));
                    }
                })
            })
            .collect();
        let taken = Arc::clone(&queue);
        let writer = thread::spawn(move || {
            let (mut next, mut written, mut dropped) = ([0; THREADS], 0, 0);
            loop {
                for item in taken.take() {
                    match item {
                        Item::Line(line) if line == "the end" => return written + dropped,
                        Item::Line(line) => {
                            let mut words = line.split(' ').map(|word| word.parse::<usize>());
                            let (thread, line) = (words.next().unwrap(), words.next().unwrap());
                            let next = &mut next[thread.unwrap()];
                            let line = line.unwrap();
                            assert!(line >= *next, "{line} after {next}");
                            *next = line + 1;
                            written += 1;
                        }
                        Item::Dropped(lines) => dropped += lines,
                        Item::Progress(_) => panic!("nothing shows progress"),
                    }
                }
            }
        });
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
        queue.important_line("the end".into());
        assert_eq!(writer.join().unwrap(), THREADS as u64 * LINES);
    }
}
