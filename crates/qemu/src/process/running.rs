//! The QEMU processes of this host, as far as they can be seen without their monitors.

use std::fs;
use std::io::{self, Read};
use std::path::Path;

use hikkoshi_linux::Process;

use super::options::{self, Opt};

/// The most bytes that are read of `/proc/PID/status`.
const MAX_STATUS: u64 = 64 << 10;

/// A QEMU process with a guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunningQemu {
    /// Its number.
    pub pid: u32,
    /// What its guest is called (`-name`). `None`: it has no name.
    pub name: Option<String>,
    /// Bytes of the guest's memory (`-m`). `None`: that was not said.
    pub memory_bytes: Option<u64>,
    /// Bytes of memory that it has now, huge pages included.
    pub resident_bytes: u64,
    /// The words of its command line.
    words: Vec<String>,
}

impl RunningQemu {
    /// Whether its command line has this path, such as that of its QMP socket.
    pub fn names(&self, path: &Path) -> bool {
        // In the value of an option.
        let path = path.to_string_lossy().replace(',', ",,");
        self.words.iter().any(|word| word.contains(&*path))
    }
}

/// The processes that are QEMUs by the name of their program. Their monitors are left alone: a
/// client that comes while a QEMU starts can block it, and a libvirt daemon may have the only
/// place.
///
/// # Errors
/// When `/proc` cannot be read. A process that cannot be read, or has just ended, is left out.
pub fn running_qemus() -> io::Result<Vec<RunningQemu>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        found.extend(qemu(pid));
    }
    found.sort_unstable_by_key(|qemu| qemu.pid);
    Ok(found)
}

fn qemu(pid: u32) -> Option<RunningQemu> {
    let process = Process::open(pid).ok()?;
    let text = options::read(&process).ok()?;
    let words = text.split(|byte| *byte == 0);
    let words = words.map(|word| String::from_utf8_lossy(word).into_owned());
    let words: Vec<String> = words.collect();
    let (program, arguments) = words.split_first()?;
    if !is_qemu(program) {
        return None;
    }
    let (name, memory_bytes) = guest(&options::parse(arguments.iter().cloned()));
    let mut status = String::new();
    let file = process.open_proc("status").ok()?;
    file.take(MAX_STATUS).read_to_string(&mut status).ok()?;
    Some(RunningQemu {
        pid,
        name,
        memory_bytes,
        resident_bytes: resident(&status),
        words,
    })
}

/// Whether a program of this path runs guests: `qemu-system-x86_64`, or `kvm` and `qemu-kvm` as
/// distributions call it.
fn is_qemu(program: &str) -> bool {
    let name = program.rsplit('/').next().unwrap_or(program);
    name.starts_with("qemu-system-") || matches!(name, "qemu-kvm" | "kvm")
}

/// The guest's name and the bytes of its memory. Of an option that is given again, the last counts.
fn guest(options: &[Opt]) -> (Option<String>, Option<u64>) {
    let last = |name: &str, key: &str| {
        let mut values = options.iter().rev().filter(|option| option.is(name));
        values.find_map(|option| option.get(key, true))
    };
    let name = last("name", "guest").filter(|name| !name.is_empty());
    (name, last("m", "size").as_deref().and_then(size))
}

/// A size of `-m`: mebibytes, unless a unit is given.
fn size(text: &str) -> Option<u64> {
    let shift = match text.chars().last()?.to_ascii_lowercase() {
        'b' => 0,
        'k' => 10,
        'm' => 20,
        'g' => 30,
        't' => 40,
        '0'..='9' => return text.parse::<u64>().ok()?.checked_mul(1 << 20),
        _ => return None,
    };
    let number = text.get(..text.len() - 1)?;
    if let Some((whole, part)) = number.split_once('.') {
        // Such as 1.5G.
        let digits = u32::try_from(part.len()).ok()?;
        let scale = 10_u64.checked_pow(digits)?;
        let all = whole.parse::<u64>().ok()?.checked_mul(scale)?;
        let all = all.checked_add(part.parse().ok()?)?;
        return all.checked_mul(1 << shift).map(|bytes| bytes / scale);
    }
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// What `/proc/PID/status` says of the memory of a process (proc(5)).
fn resident(status: &str) -> u64 {
    let value = |name: &str| -> u64 {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        kib.unwrap_or(0).saturating_mul(1024)
    };
    value("VmRSS:").saturating_add(value("HugetlbPages:"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> (Option<String>, Option<u64>) {
        guest(&options::parse(line.split_whitespace().map(str::to_owned)))
    }

    #[test]
    fn a_guest_is_described_by_its_command_line() {
        let web = Some("web".to_owned());
        assert_eq!(of("-name web -m 512"), (web.clone(), Some(512 << 20)));
        assert_eq!(
            of("-name guest=web,debug-threads=on -m size=4G,slots=2,maxmem=8G"),
            (web.clone(), Some(4 << 30))
        );
        assert_eq!(of("-m 1.5G -m 2g --name web"), (web, Some(2 << 30)));
        assert_eq!(of("-m 1.5G"), (None, Some(3 << 29)));
        assert_eq!(of("disk.img -m x -name"), (None, None));
        for (text, bytes) in [("1T", Some(1 << 40)), ("64k", Some(64 << 10)), ("", None)] {
            assert_eq!(size(text), bytes, "{text}");
        }
        for text in ["G", "-1G", "1.G", "1.5.5G", "99999999999999T", "ä"] {
            assert_eq!(size(text), None, "{text}");
        }
    }

    #[test]
    fn programs_that_run_guests_are_qemus() {
        for program in [
            "/usr/bin/qemu-system-x86_64",
            "kvm",
            "/usr/libexec/qemu-kvm",
        ] {
            assert!(is_qemu(program), "{program}");
        }
        for program in ["qemu-img", "/usr/bin/qemu-storage-daemon", "bash", ""] {
            assert!(!is_qemu(program), "{program}");
        }
    }

    #[test]
    fn a_machine_is_found_by_its_socket() {
        let words = ["kvm", "-qmp", "unix:/run/a,,b/web.qmp,server=on"];
        let qemu = RunningQemu {
            pid: 1,
            name: None,
            memory_bytes: None,
            resident_bytes: 0,
            words: words.map(str::to_owned).to_vec(),
        };
        assert!(qemu.names(Path::new("/run/a,b/web.qmp")));
        assert!(!qemu.names(Path::new("/run/a,b/db.qmp")));
    }

    #[test]
    fn huge_pages_count() {
        let status = "Name:\tqemu\nVmRSS:\t   1024 kB\nHugetlbPages:\t 2048 kB\n";
        assert_eq!(resident(status), 3 << 20);
        assert_eq!(resident(""), 0);
    }

    #[test]
    fn this_process_is_no_qemu() {
        let own = std::process::id();
        assert!(running_qemus().unwrap().iter().all(|qemu| qemu.pid != own));
        assert_eq!(qemu(own), None);
    }
}
