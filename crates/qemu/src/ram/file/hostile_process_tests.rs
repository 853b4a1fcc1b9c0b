//! Tests with a hostile process in the place of QEMU: it maps files of other users, and
//! replaces the file at a path after it was checked.

use std::fs::{File, Metadata};
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use hikkoshi_linux::Process;
use rustix::fs::Mode;
use vm_memory::{FileOffset, MmapRegion};

use super::{BlockMemory, Kind, open};
use crate::identity::RamFileIdentity;
use crate::process::reopen::FileAccess;
use crate::ram::RamError;
use crate::ram::blocks::RamBlockInfo;

const PATH: &str = "HIKKOSHI_TEST_HOSTILE_PATH";
const READ_ONLY: &str = "HIKKOSHI_TEST_HOSTILE_READ_ONLY";
const BYTES: u64 = 1 << 20;

/// The other process: a copy of this program that maps a file, prints a line, and waits
/// for the end of its standard input.
#[test]
fn another_process() {
    let Some(path) = std::env::var_os(PATH) else {
        return;
    };
    let write = std::env::var_os(READ_ONLY).is_none();
    let file = File::options().read(true).write(write).open(path).unwrap();
    let access = if write {
        libc_prot::READ | libc_prot::WRITE
    } else {
        libc_prot::READ
    };
    let length = usize::try_from(BYTES).unwrap();
    let file = Some(FileOffset::new(file, 0));
    let mapped = MmapRegion::<()>::build(file, length, access, libc_prot::SHARED).unwrap();
    println!("\nMAPPED");
    io::copy(&mut io::stdin(), &mut io::sink()).unwrap();
    drop(mapped);
}

/// `sys/mman.h`, the same everywhere on Linux.
mod libc_prot {
    pub(super) const READ: i32 = 1;
    pub(super) const WRITE: i32 = 2;
    pub(super) const SHARED: i32 = 1;
}

/// The hostile process.
struct HostileProcess {
    child: Child,
    process: Arc<Process>,
}

impl HostileProcess {
    fn mapping(path: &Path, read_only: bool) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args([
                "--exact",
                "ram::file::hostile_process_tests::another_process",
            ])
            .arg("--nocapture")
            .env(PATH, path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        if read_only {
            command.env(READ_ONLY, "1");
        }
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.map(Result::unwrap).any(|line| line == "MAPPED"));
        let process = Arc::new(Process::open(child.id()).unwrap());
        Self { child, process }
    }

    /// The address at which it has mapped the file with this number.
    fn address_of(&self, inode: u64) -> u64 {
        let areas = crate::process::areas(&self.process).unwrap();
        areas.iter().find(|area| area.inode == inode).unwrap().start
    }

    /// Opens the file with this number, as if QEMU had reported it as a block.
    fn open(&self, inode: u64, access: FileAccess) -> Result<BlockMemory, RamError> {
        let areas = crate::process::areas(&self.process).unwrap();
        let block = RamBlockInfo {
            name: "ram".into(),
            page_size: 4096,
            offset: 0,
            used: BYTES,
            total: BYTES,
            host: None,
            read_only: None,
        };
        open(
            &self.process,
            &areas,
            &block,
            self.address_of(inode),
            access,
        )
    }
}

/// The metadata of a shared file that was opened.
fn opened(memory: Result<BlockMemory, RamError>) -> Metadata {
    match memory.unwrap().kind {
        Kind::Shared(file) => file.metadata,
        other => panic!("{other:?}"),
    }
}

impl Drop for HostileProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A folder on tmpfs with a file `ram`.
fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = folder.path().join("ram");
    File::create(&path).unwrap().set_len(BYTES).unwrap();
    (folder, path)
}

fn numbers(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

fn put_fifo(path: &Path) {
    rustix::fs::mkfifoat(rustix::fs::CWD, path, Mode::RUSR | Mode::WUSR).unwrap();
}

/// Runs `does` and fails if it blocks.
fn within_a_minute<T: Send>(what: &str, does: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        scope.spawn(move || sender.send(does()));
        receiver
            .recv_timeout(Duration::from_secs(60))
            .unwrap_or_else(|error| {
                eprintln!("{what}: {error}");
                // The thread cannot be ended, and the scope would wait for it.
                std::process::abort()
            })
    })
}

#[test]
fn a_file_that_is_mapped_read_only_is_not_opened() {
    let (_folder, path) = folder();
    let other = HostileProcess::mapping(&path, true);
    let inode = std::fs::metadata(&path).unwrap().ino();
    for access in [FileAccess::Write, FileAccess::Read] {
        let error = other.open(inode, access).unwrap_err();
        assert!(matches!(error, RamError::ReadOnly { .. }), "{error}");
    }
}

#[test]
fn a_replaced_path_is_not_opened() {
    let (folder, path) = folder();
    let victim = folder.path().join("victim");
    File::create(&victim).unwrap().set_len(BYTES).unwrap();
    let mapped = numbers(&std::fs::metadata(&path).unwrap());
    let other = HostileProcess::mapping(&path, false);
    let fifo = folder.path().join("fifo");
    put_fifo(&fifo);
    let check = || {
        for access in [FileAccess::Read, FileAccess::Write] {
            let found = within_a_minute("opening what is mapped", || other.open(mapped.1, access));
            assert_eq!(numbers(&opened(found)), mapped);
        }
    };
    for target in [&victim, &fifo] {
        std::fs::remove_file(&path).unwrap();
        symlink(target, &path).unwrap();
        check();
    }
    std::fs::remove_file(&path).unwrap();
    put_fifo(&path);
    check();
}

#[test]
fn a_recorded_file_is_opened_only_while_it_is_mapped_writable() {
    let (_folder, path) = folder();
    let metadata = std::fs::metadata(&path).unwrap();
    let other = HostileProcess::mapping(&path, false);
    let open = |other: &HostileProcess| {
        // As in a journal, at the address of this process.
        let place = RamFileIdentity {
            path: path.clone(),
            device: metadata.dev(),
            inode: metadata.ino(),
            offset: 0,
            address: other.address_of(metadata.ino()),
        };
        place.open(BYTES, Some(&other.process), FileAccess::Write)
    };
    let opened = open(&other).unwrap().metadata().unwrap();
    assert_eq!(numbers(&opened), numbers(&metadata));
    let error = open(&HostileProcess::mapping(&path, true)).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
}

#[test]
fn after_the_end_of_the_process_only_the_file_at_the_path_is_opened() {
    let (folder, path) = folder();
    let metadata = std::fs::metadata(&path).unwrap();
    let place = RamFileIdentity {
        path: path.clone(),
        device: metadata.dev(),
        inode: metadata.ino(),
        offset: 0,
        address: 0,
    };
    let open = || {
        within_a_minute("opening what was noted", || {
            place.open(BYTES, None, FileAccess::Read)
        })
    };
    assert_eq!(
        numbers(&open().unwrap().metadata().unwrap()),
        numbers(&metadata)
    );
    let moved = folder.path().join("moved");
    std::fs::rename(&path, &moved).unwrap();
    symlink(&moved, &path).unwrap();
    open().unwrap_err();
    std::fs::remove_file(&path).unwrap();
    put_fifo(&path);
    open().unwrap_err();
}
