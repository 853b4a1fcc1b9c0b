//! The logs of machines: what their QEMUs have written.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

use hikkoshi_linux::is_served;

use super::{LOG, QMP, folder};

/// How much of a log is in an error message, in bytes.
const LOG_TAIL: u64 = 1024;

/// The largest log, in bytes. The run folder is in memory, and a guest can cause warnings of QEMU.
const MAX_LOG: u64 = 1 << 20;

/// How much of a log that was too large is kept, in bytes.
const KEPT_LOG: u64 = 64 << 10;

/// Logs of machines that have ended, that are kept.
const MAX_LOGS: usize = 64;

/// Cuts logs of machines that are too large, and removes the oldest of machines that have ended.
pub(crate) fn limit_logs(run: &Path) -> io::Result<()> {
    let files = match fs::read_dir(folder(run)) {
        Ok(files) => files,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let mut logs = Vec::new();
    for entry in files {
        let path = entry?.path();
        if path.extension().is_none_or(|end| end != LOG) {
            continue;
        }
        let log = fs::metadata(&path)?;
        if log.len() > MAX_LOG {
            cut(&path)?;
        }
        logs.push((log.modified()?, path));
    }
    if logs.len() > MAX_LOGS {
        logs.retain(|(_, path)| !is_served(&path.with_extension(QMP)).unwrap_or(true));
        logs.sort_unstable();
        let old = logs.len().saturating_sub(MAX_LOGS);
        for (_, path) in &logs[..old] {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

/// Keeps the end of a log. What is written meanwhile may be lost.
fn cut(log: &Path) -> io::Result<()> {
    let mut file = OpenOptions::new().read(true).append(true).open(log)?;
    file.seek(SeekFrom::End(
        -i64::try_from(KEPT_LOG).map_err(io::Error::other)?,
    ))?;
    let mut end = Vec::new();
    file.read_to_end(&mut end)?;
    file.set_len(0)?;
    file.write_all(b"(the messages before this line were removed)\n")?;
    file.write_all(&end)
}

/// The end of a log, for an error message.
pub(crate) fn tail(log: &Path) -> String {
    let read = || {
        let mut file = fs::File::open(log)?;
        let len = file.metadata()?.len();
        file.seek(SeekFrom::Start(len.saturating_sub(LOG_TAIL)))?;
        let mut end = Vec::new();
        file.take(LOG_TAIL).read_to_end(&mut end)?;
        Ok::<_, io::Error>(String::from_utf8_lossy(&end).trim().to_owned())
    };
    match read() {
        Ok(text) if !text.is_empty() => text,
        _ => format!("see {}", log.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{make_folder, socket};
    use super::*;
    use std::time::Duration;

    #[test]
    fn logs_do_not_fill_the_folder() {
        let run = tempfile::tempdir().unwrap();
        limit_logs(run.path()).unwrap();
        make_folder(run.path()).unwrap();
        let log = folder(run.path()).join("a.log");
        let mut qemu = OpenOptions::new();
        let mut qemu = qemu.create(true).append(true).open(&log).unwrap();
        let line = [b'x'; 99];
        for _ in 0..=(MAX_LOG / 100) {
            qemu.write_all(&line).unwrap();
            qemu.write_all(b"\n").unwrap();
        }
        limit_logs(run.path()).unwrap();
        qemu.write_all(b"the last\n").unwrap();
        let text = fs::read_to_string(&log).unwrap();
        assert!(text.starts_with("(the messages before") && text.ends_with("x\nthe last\n"));
        assert!(text.len() as u64 <= KEPT_LOG + 100);
        // One whose machine runs is kept, however old it is.
        let _qemu = std::os::unix::net::UnixListener::bind(socket(run.path(), "a")).unwrap();
        for number in 0..=MAX_LOGS {
            let file = fs::File::create(folder(run.path()).join(format!("n{number}.log")));
            let age = Duration::from_secs(1 + u64::try_from(MAX_LOGS - number).unwrap());
            let time = std::time::SystemTime::now() - age;
            file.unwrap().set_modified(time).unwrap();
        }
        let file = fs::File::options().write(true).open(&log).unwrap();
        file.set_modified(std::time::UNIX_EPOCH).unwrap();
        limit_logs(run.path()).unwrap();
        let is_there = |name: &str| folder(run.path()).join(name).exists();
        assert!(is_there("a.log") && !is_there("n0.log") && is_there("n1.log"));
    }
}
