//! The command line that a destination's QEMU needs: [`DestinationLine`], made from that of the
//! running QEMU and from what has changed in it since it was started.
//!
//! | file | holds |
//! | --- | --- |
//! | `destination_line.rs` | the command line, as text for a shell |
//! | `exact.rs` | what the running QEMU says about itself |
//! | `adapt.rs` | which options are replaced, left out, or pointed out |
//! | `plugged.rs` | devices and processors that were plugged in later, or unplugged |
//! | `memory.rs` | memory that was plugged in later |
//! | `backends.rs` | network backends and block nodes that were added later |
//! | `disks.rs` | disks whose image was changed |
//! | `property_text.rs` | the value of a property |
//! | `quote.rs` | words for a shell |

mod adapt;
mod backends;
mod destination_line;
mod disks;
mod exact;
mod memory;
mod plugged;
mod property_text;
mod quote;

use std::path::Path;

pub use self::destination_line::DestinationLine;
pub(crate) use self::exact::Exact;

use crate::attach::AttachError;
use crate::process::{self, options};
use crate::qmp::{CONNECT_TIMEOUT, Client};

impl DestinationLine {
    /// For a destination of the guest whose QMP socket is at `qmp`. Changes nothing.
    ///
    /// # Errors
    ///
    /// If QEMU does not answer or its process cannot be read.
    pub fn for_guest_at(qmp: &Path) -> Result<Self, AttachError> {
        let mut client = Client::connect(qmp, CONNECT_TIMEOUT)?;
        let process = process::find(&client)?;
        let text = options::read(&process)
            .map_err(|source| process::explain(&process, "reading the command line", source))?;
        let mut line = Self::adapted(&text, &Exact::query(&mut client)?);
        plugged::add(&mut client, &mut line)?;
        disks::update(&mut client, &mut line)?;
        let folder = std::fs::read_link(format!("/proc/{}/cwd", process.pid()));
        if let Ok(folder) = folder {
            line.notes.push(format!(
                "relative paths are relative to the folder {}",
                folder.display()
            ));
        }
        Ok(line)
    }

    /// From the words of `/proc/PID/cmdline`, each of which ends with a zero byte.
    fn adapted(text: &[u8], exact: &Exact) -> Self {
        let mut notes = Vec::new();
        let text = text.strip_suffix(b"\0").unwrap_or(text);
        let mut words = text.split(|byte| *byte == 0).map(|word| {
            if std::str::from_utf8(word).is_err() {
                notes.push("a word of the command line is not UTF-8; it was changed".to_owned());
            }
            String::from_utf8_lossy(word).into_owned()
        });
        let program = words.next().unwrap_or_default();
        let options = options::parse(words);
        let mut line = Self {
            program,
            options: Vec::new(),
            notes,
        };
        line.adapt(options, exact);
        line
    }
}
