//! A record of the guest's runs, on a disk of its own.
//!
//! **Why.** A guest whose memory is whole may still run twice, or have been started again: only
//! what all of its runs share can tell.
//!
//! **Model.** The first block of the disk is a line: the number of the run, a counter that each
//! beat increments, and the processor's clock at that beat. A boot is a run: it takes the next
//! number. At each beat a run reads the line, which must be what it wrote last, and writes the next
//! one. If another run writes there, or a copy of this one (whose clock is another one), whichever
//! of both comes next finds that, reports it, and writes no more.

use crate::clock::ticks;
use crate::console::print_line;
use crate::worker::{Commands, Event};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::Sender;
use std::time::Duration;

/// What is read and written at once: direct I/O needs whole blocks.
const BLOCK: usize = 4096;

/// Time between two beats.
const BEAT: Duration = Duration::from_millis(50);

/// Memory for direct I/O.
#[repr(align(4096))]
struct Block([u8; BLOCK]);

/// What the record says.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
struct Record {
    run: u64,
    beat: u64,
    /// The clock at the beat, by which the beats of two copies differ.
    at: u64,
}

impl Record {
    fn line(self) -> String {
        format!("run={} beat={} at={}\n", self.run, self.beat, self.at)
    }

    /// A disk that was never used is empty.
    fn parse(block: &[u8]) -> Option<Self> {
        if block.iter().all(|&byte| byte == 0) {
            return Some(Self::default());
        }
        let (line, _) = std::str::from_utf8(block).ok()?.split_once('\n')?;
        let mut fields = line.split(' ');
        let mut field = |name: &str| fields.next()?.strip_prefix(name)?.parse().ok();
        Some(Self {
            run: field("run=")?,
            beat: field("beat=")?,
            at: field("at=")?,
        })
    }
}

/// The guest's run.
#[derive(Debug)]
pub(crate) struct Runs {
    run: u64,
    beats: Arc<AtomicU64>,
}

impl Runs {
    /// Begins the next run on that disk.
    pub(crate) fn start(
        path: &Path,
        commands: &Arc<Commands>,
        events: &Sender<Event>,
    ) -> io::Result<Self> {
        let mut writer = Writer::open(path)?;
        let beats = Arc::new(AtomicU64::new(0));
        let started = Self {
            run: writer.last.run,
            beats: Arc::clone(&beats),
        };
        let (commands, events) = (Arc::clone(commands), events.clone());
        let begin = move || {
            while !commands.stop.load(Relaxed) {
                if let Err(why) = writer.beat() {
                    let why = format!("runs {why}").replace('\n', " ");
                    let _ = events.send(Event::Bad(why));
                    return;
                }
                beats.store(writer.last.beat, Relaxed);
                std::thread::sleep(BEAT);
            }
        };
        std::thread::Builder::new()
            .name("runs".to_owned())
            .spawn(begin)?;
        Ok(started)
    }

    /// Prints the report of an interval.
    pub(crate) fn report(&self, state: &str, time: &str) {
        let beats = self.beats.load(Relaxed);
        print_line(&format!(
            "runs: {state} {time} run={} beats={beats}",
            self.run
        ));
    }
}

/// Writes the record.
struct Writer {
    file: File,
    last: Record,
    block: Box<Block>,
}

impl Writer {
    /// Takes the next number.
    fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_DIRECT | libc::O_DSYNC)
            .open(path);
        let about = |error| io::Error::other(format!("hk.runs: {}: {error}", path.display()));
        let mut writer = Self {
            file: file.map_err(about)?,
            last: Record::default(),
            block: Box::new(Block([0; BLOCK])),
        };
        let before = writer.read().map_err(io::Error::other)?;
        writer
            .write(Record {
                run: before.run + 1,
                beat: 0,
                at: ticks(),
            })
            .map_err(io::Error::other)?;
        Ok(writer)
    }

    fn read(&mut self) -> Result<Record, String> {
        let read = self.file.read_exact_at(&mut self.block.0, 0);
        read.map_err(|error| format!("reading failed: {error}"))?;
        let found = Record::parse(&self.block.0);
        found.ok_or_else(|| "the record is damaged".to_owned())
    }

    fn write(&mut self, record: Record) -> Result<(), String> {
        let line = record.line();
        self.block.0.fill(0);
        self.block.0[..line.len()].copy_from_slice(line.as_bytes());
        let written = self.file.write_all_at(&self.block.0, 0);
        written.map_err(|error| format!("writing failed: {error}"))?;
        self.last = record;
        Ok(())
    }

    fn beat(&mut self) -> Result<(), String> {
        let (last, found) = (self.last, self.read()?);
        if found != last {
            return Err(format!(
                "another run has the disk: wrote {last:?}, found {found:?}"
            ));
        }
        self.write(Record {
            beat: last.beat + 1,
            at: ticks(),
            ..last
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk in the folder of this build, whose file system supports direct I/O.
    fn disk(name: &str) -> std::path::PathBuf {
        let folder = std::env::current_exe().unwrap();
        let path = folder.with_file_name(format!("runs-{name}-{}", std::process::id()));
        File::create(&path).unwrap().set_len(1 << 20).unwrap();
        path
    }

    #[test]
    fn runs_are_counted() {
        let path = disk("count");
        for number in 1..=3 {
            let mut run = Writer::open(&path).unwrap();
            assert_eq!(run.last.run, number);
            run.beat().unwrap();
            run.beat().unwrap();
            assert_eq!(run.last.beat, 2);
        }
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn another_run_is_found() {
        let path = disk("another");
        let mut first = Writer::open(&path).unwrap();
        first.beat().unwrap();
        let mut second = Writer::open(&path).unwrap();
        let why = first.beat().unwrap_err();
        assert!(why.contains("another run has the disk"), "{why}");
        second.beat().unwrap();
        std::fs::remove_file(path).unwrap();
    }

    /// Both copies know the same run and the same beat.
    #[test]
    fn a_copy_is_found() {
        let path = disk("copy");
        let mut run = Writer::open(&path).unwrap();
        let mut copy = Writer {
            file: run.file.try_clone().unwrap(),
            last: run.last,
            block: Box::new(Block([0; BLOCK])),
        };
        run.beat().unwrap();
        assert!(copy.beat().is_err());
        // Even if both have written the same beat at once.
        copy.write(Record {
            at: run.last.at + 1,
            ..run.last
        })
        .unwrap();
        assert!(run.beat().is_err());
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let record = Record {
            run: 2,
            beat: 7,
            at: 1 << 60,
        };
        assert_eq!(Record::parse(record.line().as_bytes()), Some(record));
        assert_eq!(Record::parse(&[0; 16]), Some(Record::default()));
        assert_eq!(Record::parse(b"run=1 beat=x at=1\n"), None);
    }
}
