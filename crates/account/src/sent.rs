//! What was sent: pages, bytes, pages that were sent more than once, and disks.

use hikkoshi_wire::CompressionMethod;
use serde::{Deserialize, Serialize};

/// Pages by the way they were sent or, at the destination, have arrived.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pages {
    /// With their content in pre-copy, repeats included.
    pub precopy: u64,
    /// As a mark because they held only zeros, in any phase.
    pub zero: u64,
    /// Because the destination requested them.
    pub urgent: u64,
    /// In post-copy without a request.
    pub background: u64,
    /// In the guest's RAM in total.
    pub guest: u64,
}

/// Bytes on the links, frame headers included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bytes {
    /// On the background links, in pre-copy.
    pub precopy: u64,
    /// On the urgent link: answers of page requests.
    pub urgent: u64,
    /// On the background links, in post-copy.
    pub background: u64,
    /// Device state, without framing.
    pub device_state: u64,
    /// In a [`State`](crate::State): of the disks' connections, from the source to the destination.
    /// An account has them in [`disk_bytes`](crate::Account::disk_bytes).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disks: Option<u64>,
}

impl Bytes {
    /// Bytes of pages and disks: all but the device state.
    pub fn of_pages_and_disks(&self) -> u64 {
        let all = [
            self.precopy,
            self.urgent,
            self.background,
            self.disks.unwrap_or(0),
        ];
        all.into_iter().fold(0, u64::saturating_add)
    }

    /// All bytes.
    pub fn all(&self) -> u64 {
        self.of_pages_and_disks().saturating_add(self.device_state)
    }
}

/// What compression has saved, by method. A method that was not used is missing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compression {
    /// By LZ4.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lz4: Option<Compressed>,
    /// By Zstandard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zstd: Option<Compressed>,
}

/// Pages that were sent compressed. They are counted as pages as well, and what was sent of them
/// as bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compressed {
    /// Bytes of their content.
    pub content_bytes: u64,
    /// Bytes that were sent instead, without frame headers.
    pub sent_bytes: u64,
}

impl Compression {
    /// The methods that were used, by name.
    pub fn by_method(&self) -> impl Iterator<Item = (&'static str, Compressed)> {
        let each = CompressionMethod::ALL.map(|method| match method {
            CompressionMethod::Lz4 => (method.name(), self.lz4),
            CompressionMethod::Zstd => (method.name(), self.zstd),
        });
        each.into_iter()
            .filter_map(|(name, compressed)| Some((name, compressed?)))
    }

    /// By any method.
    pub fn all(&self) -> Compressed {
        let each = self.by_method();
        each.fold(Compressed::default(), |all, (_, one)| Compressed {
            content_bytes: all.content_bytes.saturating_add(one.content_bytes),
            sent_bytes: all.sent_bytes.saturating_add(one.sent_bytes),
        })
    }
}

impl Compressed {
    /// Bytes that were not sent because of it.
    pub fn saved_bytes(&self) -> u64 {
        self.content_bytes.saturating_sub(self.sent_bytes)
    }
}

/// Pages that were sent more than once, by the reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repeats {
    /// Sent again in pre-copy: the guest had written to them, as the dirty log reported.
    pub precopy: Repeated,
    /// Sent in pre-copy, and again in post-copy, because the guest had written to them.
    pub stale: Repeated,
    /// Sent in pre-copy, and again in post-copy, because the guest had written to another page of
    /// the same host page of the destination, which was dropped as a whole.
    pub host_page: Repeated,
    /// Sent in post-copy, and again after the links were lost: they had not arrived.
    pub resent: Repeated,
    /// Pages of firmware and devices that were sent before *commit*, and also requested.
    pub requested: Repeated,
}

/// Pages that were sent again for one reason: every sending of a page but its first one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repeated {
    /// Pages, with their content or as a mark.
    pub pages: u64,
    /// Bytes of their content, without frame headers.
    pub bytes: u64,
}

/// How far the copy of a disk is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskCopy {
    /// The disk, for people.
    pub name: String,
    /// Bytes that are copied. What the guest writes meanwhile, which reaches both disks at once,
    /// does not count.
    pub copied_bytes: u64,
    /// Bytes to copy, as far as they are known.
    pub total_bytes: u64,
    /// Whether both disks have the same content, and each write of the guest reaches both.
    pub in_sync: bool,
}
