//! How much of its disks the guest has written to.

use hikkoshi_engine::DiskContent;
use serde_json::{Value, json};

use super::CopiedDisk;
use crate::qmp::{Client, QmpError};

/// About how many bytes the copies of these disks send: what their images and the backing images
/// below take on the host, and at most the size of the disk. (What is compressed there is larger,
/// and what several images have is sent once.) QEMU does not know it of most network disks.
pub(crate) fn allocated(
    client: &mut Client,
    disks: &[CopiedDisk],
) -> Result<DiskContent, QmpError> {
    let answer = client.execute("query-block", json!({}))?;
    let rows = answer
        .as_array()
        .ok_or_else(|| QmpError::unexpected("query-block", "not a list"))?;
    let mut content = DiskContent::default();
    for disk in disks {
        let inserted = rows.iter().filter_map(|row| row.get("inserted"));
        let mut images = inserted.filter(|inserted| {
            inserted.get("node-name").and_then(Value::as_str) == Some(disk.node.as_str())
        });
        let image = images.next().and_then(|inserted| inserted.get("image"));
        match image.and_then(taken) {
            Some(bytes) => content.bytes = content.bytes.saturating_add(bytes.min(disk.bytes)),
            None => content.unknown.push(disk.label.clone()),
        }
    }
    Ok(content)
}

/// What an image of `query-block` and those below take. `None`: that is not known of one of them.
fn taken(image: &Value) -> Option<u64> {
    let mut images = std::iter::successors(Some(image), |image| image.get("backing-image"));
    images.try_fold(0, |sum: u64, image| {
        Some(sum.saturating_add(image.get("actual-size")?.as_u64()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_of_images_takes_the_sum() {
        let image = json!({
            "virtual-size": 99, "actual-size": 5,
            "backing-image": { "actual-size": 0, "backing-image": { "actual-size": 7 } },
        });
        assert_eq!(taken(&image), Some(12));
    }

    #[test]
    fn what_a_network_disk_takes_is_not_known() {
        assert_eq!(taken(&json!({ "virtual-size": 99 })), None);
        let above = json!({ "actual-size": 5, "backing-image": { "virtual-size": 99 } });
        assert_eq!(taken(&above), None);
    }
}
