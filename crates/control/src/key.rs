//! The key of a control socket.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

/// Random bytes of a key.
const BYTES: usize = 16;

/// The key of a control socket, in hexadecimal. A request must have it.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Key(String);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key")
    }
}

impl Key {
    /// Makes a new key, and stores it in `file` for clients.
    pub(crate) fn create(file: &Path) -> io::Result<Self> {
        let mut bytes = [0; BYTES];
        getrandom::fill(&mut bytes).map_err(io::Error::other)?;
        let key = bytes.map(|byte| format!("{byte:02x}")).concat();
        // A file of the same name is left by an engine that was killed.
        let _ = fs::remove_file(file);
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(file)
            .and_then(|mut file| file.write_all(key.as_bytes()))?;
        Ok(Self(key))
    }

    /// Reads the key of another process.
    pub(crate) fn read(file: &Path) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            // Opening a pipe must not block.
            .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed())
            .open(file)?;
        let mut key = String::new();
        file.take(2 * BYTES as u64).read_to_string(&mut key)?;
        Ok(Self(key))
    }

    /// The key in a request.
    pub(crate) fn text(&self) -> &str {
        &self.0
    }

    /// Whether a request has it. Takes the same time wherever the first difference is.
    pub(crate) fn is(&self, given: &str) -> bool {
        let (key, given) = (self.0.as_bytes(), given.as_bytes());
        let differences = key.iter().zip(given).fold(0, |all, (a, b)| all | (a ^ b));
        key.len() == given.len() && differences == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_key_is_read_by_its_owner_only() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.key");
        let first = Key::create(&file).unwrap();
        let key = Key::create(&file).unwrap();
        assert_ne!(first, key);
        assert_eq!(Key::read(&file).unwrap(), key);
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
        assert!(!format!("{key:?}").contains(key.text()));
    }

    #[test]
    fn only_the_whole_key_is_the_key() {
        let folder = tempfile::tempdir().unwrap();
        let key = Key::create(&folder.path().join("a.key")).unwrap();
        let text = key.text();
        assert_eq!(text.len(), 2 * BYTES);
        assert!(key.is(text));
        for other in ["", &text[1..], &format!("{text}0"), &"g".repeat(text.len())] {
            assert!(!key.is(other), "{other}");
        }
    }
}
