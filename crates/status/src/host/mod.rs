//! A host: what it has, which guests are on it, and the migrations there.
//!
//! `hikkoshi status` shows it of other hosts, and a planner of moves chooses hosts by it. It is
//! sent by a `hikkoshi daemon` and by a hikkoshi that is started by ssh, as one JSON document with
//! a version. A reader ignores members that it does not know.

mod read;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The version of the document. A reader refuses others.
pub const HOST_VERSION: u32 = 1;

/// The most guests, and the most migrations, that a document has.
pub const MAX_HOST_ENTRIES: usize = 4096;

/// A host at one time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostStatus {
    /// [`HOST_VERSION`].
    pub version: u32,
    /// The host.
    pub host: HostFacts,
    /// The guests that are there or awaited, as far as the one who asks may know them: by name.
    pub guests: Vec<HostGuest>,
    /// How many other guests are there or awaited.
    pub other_guests: usize,
    /// What its `hikkoshi daemon` allows. `None`: it was not asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<GuestLimits>,
    /// The migrations, if they were asked for, each as a line of `hikkoshi status --json`, as far
    /// as the one who asks may know them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub migrations: Vec<Value>,
    /// What could not be read there, and why; for people.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
}

/// What a host is and has.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostFacts {
    /// Its name (uname(2), `nodename`).
    pub name: String,
    /// The release of its kernel.
    pub kernel: String,
    /// The version of hikkoshi there.
    pub hikkoshi: String,
    /// Its memory.
    pub memory: HostMemory,
    /// Its huge pages, one entry for each size.
    pub huge_pages: Vec<HugePages>,
    /// Its processors.
    pub processors: HostProcessors,
}

/// The memory of a host, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostMemory {
    /// All of it.
    pub total_bytes: u64,
    /// What can be used without swapping, without huge pages (`MemAvailable`, proc(5)).
    pub available_bytes: u64,
    /// How much more the guests that are known may still take of that: their memory, without what
    /// their QEMUs have already. At most: memory in huge pages is not a part of what is available.
    #[serde(default)]
    pub promised_bytes: u64,
    /// What the cgroup of the process that answers can still have, with swap space: the daemon's
    /// guests are in it. `None`: it has no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup_bytes: Option<u64>,
}

impl HostMemory {
    /// What a further guest may take, as far as that is known: what is available, without what
    /// other guests may still take of it, and within the limit of the cgroup.
    pub fn free_bytes(&self) -> u64 {
        let free = self.available_bytes.saturating_sub(self.promised_bytes);
        self.cgroup_bytes.map_or(free, |limit| free.min(limit))
    }
}

/// The huge pages of one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HugePages {
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Pages in the pool.
    pub total: u64,
    /// Pages that nobody has or has reserved.
    pub free: u64,
}

/// The processors of a host.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct HostProcessors {
    /// Logical processors that are online.
    pub online: u32,
    /// Processes that run or wait for a disk, on average over 1, 5 and 15 minutes.
    pub load: [f64; 3],
    /// The model of the first one.
    pub model: String,
    /// The features of the first one, as the kernel names them.
    pub flags: Vec<String>,
}

/// A guest on a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostGuest {
    /// What it is called: by the daemon, or by its QEMU (`-name`).
    pub name: String,
    /// Where it is.
    pub state: HostGuestState,
    /// Bytes of its memory, if its QEMU says it (`-m`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Bytes that its QEMU has now. `None`: it has no process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resident_bytes: Option<u64>,
}

/// Where a guest is, as far as its host knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HostGuestState {
    /// Its QEMU is there, and no migration of it is unfinished.
    Here,
    /// An invitation for it is valid, and its source has not come.
    Awaited,
    /// It is moving to this host.
    Arriving,
    /// It is moving to another host.
    Leaving,
    /// One of a newer version. Only read.
    #[serde(other)]
    Unknown,
}

impl HostGuest {
    /// Bytes that it may still take of its host's memory.
    pub fn promised_bytes(&self) -> u64 {
        let has = self.resident_bytes.unwrap_or(0);
        self.memory_bytes
            .map_or(0, |memory| memory.saturating_sub(has))
    }
}

impl HostGuestState {
    /// Its name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Here => "here",
            Self::Awaited => "awaited",
            Self::Arriving => "arriving",
            Self::Leaving => "leaving",
            Self::Unknown => "unknown",
        }
    }
}

/// How many guests a `hikkoshi daemon` may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestLimits {
    /// Guests that may be received or awaited at a time (`--max-guests`).
    pub max_guests: usize,
    /// Guests that are received or awaited.
    pub guests: usize,
    /// Guests that may be received or awaited for one certificate.
    pub max_guests_per_certificate: usize,
}

/// Why a document is not used.
#[derive(Debug, thiserror::Error)]
pub enum HostStatusError {
    /// It is not one.
    #[error("it is not the status of a host")]
    Json(#[from] serde_json::Error),
    /// Another version.
    #[error("it has version {0}, and this hikkoshi reads version {HOST_VERSION}")]
    Version(u64),
    /// More than there may be.
    #[error("it has more than {MAX_HOST_ENTRIES} guests or migrations")]
    TooMany,
}

impl HostStatus {
    /// Reads a document. Its version comes first: the rest of another version may be anything.
    ///
    /// # Errors
    /// [`HostStatusError`].
    pub fn parse(text: &str) -> Result<Self, HostStatusError> {
        #[derive(Deserialize)]
        struct Versioned {
            version: u64,
        }
        let Versioned { version } = serde_json::from_str(text)?;
        if version != u64::from(HOST_VERSION) {
            return Err(HostStatusError::Version(version));
        }
        let status: Self = serde_json::from_str(text)?;
        let entries = status.guests.len().max(status.migrations.len());
        match entries > MAX_HOST_ENTRIES {
            true => Err(HostStatusError::TooMany),
            false => Ok(status),
        }
    }

    /// How many guests are there or awaited.
    pub fn guest_count(&self) -> usize {
        self.guests.len().saturating_add(self.other_guests)
    }
}
