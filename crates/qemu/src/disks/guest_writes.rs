//! How much the guest has written to disks while they are copied.
//!
//! QEMU adds that to both numbers of a copy's job, what is done and what is to be done. Without it
//! they tell how far the copy is, whatever the guest writes. (What the guest has written before the
//! copy came there is not to be copied any more: then there is less to do.)

use serde_json::{Value, json};

use super::filter_name;
use crate::qmp::{Client, QmpError};

/// What the guest had written when the copy of each disk began.
#[derive(Debug, Default)]
pub(crate) struct GuestWrites {
    before: Vec<u64>,
}

impl GuestWrites {
    /// The copy of the next disk has begun.
    pub(crate) fn begin(&mut self, client: &mut Client) -> Result<(), QmpError> {
        let number = self.before.len();
        let all = written(client, number + 1)?;
        self.before.extend(all.get(number));
        Ok(())
    }

    /// What it has written to each of the disks since, in bytes. A bit less than QEMU has added,
    /// while requests are in progress.
    pub(crate) fn since(&self, client: &mut Client) -> Result<Vec<u64>, QmpError> {
        let now = written(client, self.before.len())?;
        let each = now.iter().zip(&self.before);
        Ok(each
            .map(|(now, before)| now.saturating_sub(*before))
            .collect())
    }
}

/// What the guest has written to so many disks that are copied. 0 for a disk that its device does
/// not use directly, as with a throttle node in between.
fn written(client: &mut Client, disks: usize) -> Result<Vec<u64>, QmpError> {
    let devices = client.execute("query-blockstats", json!({}))?;
    let of = |number| {
        let name = filter_name(number);
        let mut devices = devices.as_array().into_iter().flatten();
        let device =
            devices.find(|row| row.get("node-name").and_then(Value::as_str) == Some(&name));
        let written = device.and_then(|row| row.pointer("/stats/wr_bytes")?.as_u64());
        written.unwrap_or(0)
    };
    Ok((0..disks).map(of).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qmp::scripted;

    #[test]
    fn what_was_written_since_the_copy_began_is_counted() {
        let row =
            |name: &str, bytes: u64| json!({ "node-name": name, "stats": { "wr_bytes": bytes } });
        let answers = [
            json!([row("#block1", 7), row(&filter_name(0), 1000)]),
            json!([row(&filter_name(1), 50), row(&filter_name(0), 1500)]),
            json!([row(&filter_name(1), 55), row(&filter_name(0), 9000)]),
            json!([row("#block1", 7), row(&filter_name(1), 70)]),
        ];
        let mut answers = answers.into_iter().map(Ok);
        let (mut client, qemu) =
            scripted::session(move |_| answers.next().unwrap_or(Err("not expected")));
        let mut writes = GuestWrites::default();
        writes.begin(&mut client).unwrap();
        writes.begin(&mut client).unwrap();
        assert_eq!(writes.since(&mut client).unwrap(), [8000, 5]);
        assert_eq!(writes.since(&mut client).unwrap(), [0, 20]);
        drop(client);
        assert_eq!(qemu.join().unwrap(), ["query-blockstats"; 4]);
    }
}
