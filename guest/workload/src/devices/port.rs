//! A virtio-serial port, whose data is sent back.

use super::if_found;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;

/// The first port that is not a console.
#[derive(Debug, Default)]
pub(super) struct Port {
    file: Option<File>,
    echoed: usize,
}

impl Port {
    /// Sends back what has arrived, and returns how many bytes that were since the start.
    pub(super) fn echo(&mut self) -> io::Result<Option<usize>> {
        if self.file.is_none() {
            self.file = open()?;
        }
        let Some(file) = &mut self.file else {
            return Ok(None);
        };
        let mut bytes = [0; 256];
        match file.read(&mut bytes) {
            Ok(read) => {
                file.write_all(bytes.get(..read).unwrap_or_default())?;
                self.echoed += read;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        Ok(Some(self.echoed))
    }
}

fn open() -> io::Result<Option<File>> {
    for entry in std::fs::read_dir("/dev")? {
        let entry = entry?;
        if entry.file_name().as_encoded_bytes().starts_with(b"vport") {
            let mut options = OpenOptions::new();
            options.read(true).write(true);
            let opened = options.custom_flags(libc::O_NONBLOCK).open(entry.path());
            return if_found(opened);
        }
    }
    Ok(None)
}
