//! The pipe that a QEMU reads and holds open itself (`hold.rs`), found by its descriptors.

use std::collections::BTreeMap;
use std::io;

use hikkoshi_linux::Process;
use rustix::fs::OFlags;

use super::helper::pipe as pipe_of;

/// `O_LARGEFILE` (the kernel's `asm-generic/fcntl.h`): set by every `open` of a 64-bit process, and
/// not by `pipe`. The C library's constant is 0.
const OPENED_BY_PATH: OFlags = OFlags::from_bits_retain(0o100_000);

/// A descriptor of the pipe that the process reads and holds open itself. The end for writing of a
/// pipe that a program has made to wake itself is not opened by path.
pub(super) fn held(process: &Process) -> io::Result<Option<i32>> {
    let mut pipes = BTreeMap::<_, Vec<i32>>::new();
    for number in process.descriptors()? {
        if let Some(identity) = pipe_of(process.pid(), number) {
            pipes.entry(identity).or_default().push(number);
        }
    }
    let mut held = Vec::new();
    for numbers in pipes.into_values() {
        let (mut is_read, mut writes) = (false, None);
        for number in numbers {
            let Some(flags) = flags(process, number)? else {
                continue;
            };
            match flags & OFlags::ACCMODE {
                OFlags::WRONLY if flags.contains(OPENED_BY_PATH) => writes = Some(number),
                OFlags::RDONLY => is_read = true,
                _ => {}
            }
        }
        held.extend(writes.filter(|_| is_read));
    }
    Ok(match held[..] {
        [number] => Some(number),
        _ => None,
    })
}

/// How a descriptor is open, by the flags in its `fdinfo` (proc(5)), which are octal. `None`: it
/// was closed.
pub(super) fn flags(process: &Process, number: i32) -> io::Result<Option<OFlags>> {
    let info = match process.describe_descriptor(number) {
        Ok((_, info)) => info,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok());
    let flags = flags.ok_or(io::ErrorKind::InvalidData)?;
    Ok(Some(OFlags::from_bits_retain(flags)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::process::Command;

    #[test]
    fn a_pipe_by_which_a_process_wakes_itself_is_not_its_stream() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let by_path = format!("/proc/self/fd/{}", reader.as_raw_fd());
        let opened = File::options().write(true).open(by_path).unwrap();
        for (output, wanted) in [(File::from(writer), None), (opened, Some(1))] {
            let mut child = Command::new("sleep")
                .arg("60")
                .stdin(reader.try_clone().unwrap())
                .stdout(output)
                .spawn()
                .unwrap();
            let process = Process::open(child.id()).unwrap();
            let found = held(&process);
            child.kill().unwrap();
            child.wait().unwrap();
            assert_eq!(found.unwrap(), wanted);
        }
    }
}
