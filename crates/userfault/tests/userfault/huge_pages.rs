//! Pages of 2 MiB.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;

use error_reporter::Report;
use hikkoshi_linux::{HostAddr, HostRange};
use hikkoshi_userfault::{Copied, CopyError, Features, RegisterMode, Userfault};

use crate::common::{HugePages, map_shared, memory_file};

use super::PAGE;

/// Punches a hole.
fn punch(file: &File, offset: u64, bytes: u64) {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    let (offset, bytes) = (offset.try_into().unwrap(), bytes.try_into().unwrap());
    let result = unsafe { libc::fallocate(file.as_raw_fd(), mode, offset, bytes) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

/// hugetlbfs supports only whole huge pages, and no zero pages.
#[test]
fn huge_pages_are_installed_whole() {
    const HUGE: usize = 2 << 20;
    let Some(_pages) = HugePages::reserve(2) else {
        return;
    };
    let file = memory_file(2 * HUGE as u64, true);
    let memory = map_shared(2 * HUGE, file.as_raw_fd());
    let own = Userfault::create_for_self(Features::FOR_MISSING).unwrap();
    let range = HostRange::new(HostAddr(memory.expose_provenance() as u64), 2 * HUGE as u64);
    let registered = own.register(range, RegisterMode::MISSING).unwrap();
    assert!(!registered.zero);
    let content: Vec<u8> = (0..HUGE).map(|at| (at >> 12) as u8).collect();
    let error = own.copy(range.addr, &content[..PAGE]).unwrap_err();
    assert!(
        Report::new(&error).to_string().contains("EINVAL"),
        "{error}"
    );
    for (installed, present) in [(HUGE as u64, 0), (0, HUGE as u64)] {
        let copied = copy_host_page(&own, range.addr, &content).unwrap();
        assert_eq!(copied, Copied { installed, present });
    }
    let read = |page: usize| unsafe { memory.add(page * PAGE).read_volatile() };
    assert_eq!([read(0), read(1), read(255)], [0, 1, 255]);
    own.unregister(range).unwrap();
    unsafe { libc::munmap(memory.cast(), 2 * HUGE) };
}

/// Installs one huge page.
fn copy_host_page(own: &Userfault, at: HostAddr, content: &[u8]) -> Result<Copied, CopyError> {
    own.copy_unless(at, content, content.len() as u64, &mut |_| true)
}

/// A file system mounted for one test; requires root.
struct Mounted(tempfile::TempDir);

impl Mounted {
    /// Mounts a file system of this type with these options.
    fn new(kind: &str, options: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mounted = Command::new("mount")
            .args(["-t", kind, "-o", options, "hikkoshi-test"])
            .arg(folder.path())
            .status();
        assert!(mounted.unwrap().success(), "mounting needs root");
        Self(folder)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}

/// The kernel reports that a huge page exists when none can be allocated. Treating it as present
/// would lose the page.
#[test]
fn a_huge_page_that_cannot_be_allocated_is_not_present() {
    const HUGE: usize = 2 << 20;
    let Some(_pages) = HugePages::reserve(2) else {
        return;
    };
    // Memory for only one of the two pages, whatever the size of the pool.
    let mounted = Mounted::new("hugetlbfs", "pagesize=2M,size=2M");
    let path = mounted.path().join("ram");
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)
        .unwrap();
    file.set_len(2 * HUGE as u64).unwrap();
    let map = || {
        let memory = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                2 * HUGE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_NORESERVE,
                file.as_raw_fd(),
                0,
            )
        };
        assert_ne!(memory, libc::MAP_FAILED);
        memory.cast::<u8>()
    };
    let (memory, elsewhere) = (map(), map());
    let own = Userfault::create_for_self(Features::FOR_MISSING).unwrap();
    let first = HostRange::new(HostAddr(memory.expose_provenance() as u64), HUGE as u64);
    let second = HostRange::new(first.addr.checked_add(HUGE as u64).unwrap(), HUGE as u64);
    for range in [first, second] {
        own.register(range, RegisterMode::MISSING).unwrap();
    }
    let content = vec![7; HUGE];
    let nothing = Copied::default();
    let installed = Copied {
        installed: HUGE as u64,
        ..nothing
    };
    let present = Copied {
        present: HUGE as u64,
        ..nothing
    };
    let copy = |range: HostRange| copy_host_page(&own, range.addr, &content);
    assert_eq!(copy(first), Ok(installed));
    assert!(matches!(
        copy(second),
        Err(CopyError::OutOfMemory { done: 0, .. })
    ));
    // Free memory; the page is then installed first through another mapping.
    punch(&file, 0, HUGE as u64);
    unsafe { elsewhere.add(HUGE).write_volatile(9) };
    assert_eq!(copy(second), Ok(present));
    assert!(matches!(copy(first), Err(CopyError::OutOfMemory { .. })));
    assert_eq!(unsafe { memory.add(HUGE).read_volatile() }, 9);
    punch(&file, HUGE as u64, HUGE as u64);
    assert_eq!(copy(first), Ok(installed));
    assert_eq!(unsafe { memory.read_volatile() }, 7);
    for range in [first, second] {
        own.unregister(range).unwrap();
    }
    for mapping in [memory, elsewhere] {
        unsafe { libc::munmap(mapping.cast(), 2 * HUGE) };
    }
}
