//! A tablet, by its input events (Linux, `include/uapi/linux/input.h`).

use super::if_found;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

/// Two words for the time, then type and code with 16 bits each, and the value with 32.
const EVENT: usize = 24;
const EV_ABS: u16 = 3;
const ABS_X: u16 = 0;
const ABS_Y: u16 = 1;

/// The first tablet, and where its pointer is.
#[derive(Debug, Default)]
pub(super) struct Tablet {
    events: Option<File>,
    position: [i32; 2],
}

impl Tablet {
    /// The pointer's position `X,Y` after all events so far.
    pub(super) fn position(&mut self) -> io::Result<Option<String>> {
        if self.events.is_none() {
            self.events = open()?;
        }
        let Some(events) = &mut self.events else {
            return Ok(None);
        };
        let mut event = [0; EVENT];
        loop {
            match events.read_exact(&mut event) {
                Ok(()) => apply(&mut self.position, &event),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        let [x, y] = self.position;
        Ok(Some(format!("{x},{y}")))
    }
}

fn open() -> io::Result<Option<File>> {
    let Some(folder) = if_found(std::fs::read_dir("/sys/class/input"))? else {
        return Ok(None);
    };
    for entry in folder {
        let entry = entry?;
        let name = std::fs::read_to_string(entry.path().join("device/name"));
        let file = PathBuf::from("/dev/input").join(entry.file_name());
        let is_event = entry.file_name().as_encoded_bytes().starts_with(b"event");
        if is_event && name.is_ok_and(|name| name.contains("Tablet")) {
            let mut options = OpenOptions::new();
            return options
                .read(true)
                .custom_flags(libc::O_NONBLOCK)
                .open(file)
                .map(Some);
        }
    }
    Ok(None)
}

fn apply(position: &mut [i32; 2], event: &[u8; EVENT]) {
    let [.., k0, k1, c0, c1, v0, v1, v2, v3] = *event;
    let value = i32::from_ne_bytes([v0, v1, v2, v3]);
    match (u16::from_ne_bytes([k0, k1]), u16::from_ne_bytes([c0, c1])) {
        (EV_ABS, ABS_X) => position[0] = value,
        (EV_ABS, ABS_Y) => position[1] = value,
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_move_the_pointer() {
        let mut position = [0, 0];
        let mut send = |kind: u16, code: u16, value: i32| {
            let mut event = [0xff; EVENT];
            event[16..18].copy_from_slice(&kind.to_ne_bytes());
            event[18..20].copy_from_slice(&code.to_ne_bytes());
            event[20..].copy_from_slice(&value.to_ne_bytes());
            apply(&mut position, &event);
            position
        };
        assert_eq!(send(EV_ABS, ABS_X, 300), [300, 0]);
        assert_eq!(send(EV_ABS, ABS_Y, 20), [300, 20]);
        assert_eq!(send(0, 0, 7), [300, 20], "the end of a group of events");
    }
}
