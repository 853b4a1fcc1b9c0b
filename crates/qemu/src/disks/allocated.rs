//! How much of its disks the guest has written to.

use serde_json::{Value, json};

use super::CopiedDisk;
use crate::qmp::{Client, QmpError};

/// About how many bytes the copies of these disks send: what their images and the backing images
/// below take on the host, and at most the size of the disk. (What is compressed there is larger,
/// and what several images have is sent once.)
pub(crate) fn allocated(client: &mut Client, disks: &[CopiedDisk]) -> Result<u64, QmpError> {
    let answer = client.execute("query-block", json!({}))?;
    let rows = answer
        .as_array()
        .ok_or_else(|| QmpError::unexpected("query-block", "not a list"))?;
    let of = |disk: &CopiedDisk| {
        let inserted = rows.iter().filter_map(|row| row.get("inserted"));
        let mut images = inserted.filter(|inserted| {
            inserted.get("node-name").and_then(Value::as_str) == Some(disk.node.as_str())
        });
        let image = images.next().and_then(|inserted| inserted.get("image"));
        image.map_or(0, taken).min(disk.bytes)
    };
    Ok(disks.iter().map(of).fold(0, u64::saturating_add))
}

/// What an image of `query-block` and those below take. QEMU does not know it of network disks.
fn taken(image: &Value) -> u64 {
    std::iter::successors(Some(image), |image| image.get("backing-image"))
        .filter_map(|image| image.get("actual-size")?.as_u64())
        .fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_of_images_takes_the_sum() {
        let image = json!({
            "virtual-size": 99, "actual-size": 5,
            "backing-image": { "backing-image": { "actual-size": 7 } },
        });
        assert_eq!(taken(&image), 12);
        assert_eq!(taken(&json!({ "virtual-size": 99 })), 0);
    }
}
