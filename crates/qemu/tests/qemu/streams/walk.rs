//! Takes apart the stream of QEMU's own `migrate`.

use serde_json::Value;

/// A device's section, or the first part of one that is saved in parts.
#[derive(Debug)]
pub(crate) struct Section {
    pub id: u32,
    pub name: String,
    pub instance: u32,
    pub version: u32,
    pub payload: Vec<u8>,
    /// Saved in one part.
    pub full: bool,
}

/// A complete stream.
#[derive(Debug)]
pub(crate) struct Stream {
    /// The machine type.
    pub machine: String,
    /// Header and configuration.
    pub beginning: Vec<u8>,
    pub sections: Vec<Section>,
    /// The description at the end.
    pub description: Value,
}

impl Section {
    /// As a section of the saved device state.
    pub(crate) fn as_saved(&self) -> hikkoshi_qemu::stream::Section<'_> {
        hikkoshi_qemu::stream::Section {
            id: self.id,
            name: &self.name,
            instance: self.instance,
            version: self.version,
            payload: &self.payload,
        }
    }

    /// Its bytes, with another mark and number.
    pub(crate) fn encode(&self, mark: u8, id: u32) -> Vec<u8> {
        let mut bytes = vec![mark];
        bytes.extend(id.to_be_bytes());
        bytes.push(u8::try_from(self.name.len()).unwrap());
        bytes.extend(self.name.as_bytes());
        bytes.extend(self.instance.to_be_bytes());
        bytes.extend(self.version.to_be_bytes());
        bytes.extend(&self.payload);
        bytes.push(0x7e);
        bytes.extend(id.to_be_bytes());
        bytes
    }
}

fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap())
}

/// The length of a header that begins at `at`, behind its mark.
fn header_bytes(bytes: &[u8], at: usize) -> Option<usize> {
    let length = usize::from(*bytes.get(at + 4)?);
    let name = bytes.get(at + 5..at + 5 + length)?;
    let is_name = length > 0 && name.iter().all(|b| (b' '..=b'~').contains(b));
    (is_name && bytes.len() >= at + 13 + length).then_some(13 + length)
}

fn is_next(bytes: &[u8], at: usize) -> bool {
    match bytes[at] {
        1 | 4 => header_bytes(bytes, at + 1).is_some(),
        2 | 3 => number(bytes, at + 1) < 1000,
        0 => bytes[at + 1] == 6 && number(bytes, at + 2) as usize == bytes.len() - at - 6,
        _ => false,
    }
}

impl Stream {
    pub(crate) fn parse(bytes: &[u8]) -> Self {
        assert_eq!(bytes[..9], *b"QEVM\0\0\0\x03\x07");
        let end = 13 + number(bytes, 9) as usize;
        let machine = String::from_utf8(bytes[13..end].to_vec()).unwrap();
        let mut sections: Vec<Section> = Vec::new();
        let mut at = end;
        loop {
            let kind = bytes[at];
            if kind == 0 {
                break;
            }
            let id = number(bytes, at + 1);
            let start = match kind {
                1 | 4 => at + 1 + header_bytes(bytes, at + 1).expect("a header"),
                2 | 3 => at + 5,
                other => panic!("mark {other} at {at}"),
            };
            let mut footer = vec![0x7e];
            footer.extend(id.to_be_bytes());
            let length = bytes[start..]
                .windows(5)
                .enumerate()
                .position(|(i, window)| window == footer && is_next(bytes, start + i + 5))
                .expect("a footer");
            if matches!(kind, 1 | 4) {
                sections.push(Section {
                    id,
                    name: String::from_utf8(bytes[at + 6..start - 8].to_vec()).unwrap(),
                    instance: number(bytes, start - 8),
                    version: number(bytes, start - 4),
                    payload: bytes[start..start + length].to_vec(),
                    full: kind == 4,
                });
            }
            at = start + length + 5;
        }
        Self {
            machine,
            beginning: bytes[..end].to_vec(),
            sections,
            description: serde_json::from_slice(&bytes[at + 6..]).unwrap(),
        }
    }

    /// The `ram` section's list of blocks: names and used lengths.
    pub(crate) fn ram_blocks(&self) -> Vec<(String, u64)> {
        let ram = self.sections.iter().find(|section| section.name == "ram");
        let bytes = &ram.expect("a section ram").payload;
        let long = |at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().unwrap());
        let (mut left, mut at) = (long(0) & !0xfff, 8);
        let mut blocks = Vec::new();
        while left > 0 {
            let length = usize::from(bytes[at]);
            let name = String::from_utf8(bytes[at + 1..at + 1 + length].to_vec()).unwrap();
            at += 1 + length;
            let used = long(at);
            at += 8;
            left -= used;
            blocks.push((name, used));
        }
        blocks
    }

    /// The name and length in bytes of each field of a device, in order, as the description has
    /// them. `None` for a device without a description.
    pub(crate) fn fields(&self, name: &str, instance: u32) -> Option<Vec<(String, usize)>> {
        let devices = self.description["devices"].as_array()?;
        let device = devices
            .iter()
            .find(|device| device["name"] == name && device["instance_id"] == instance)?;
        let mut fields = Vec::new();
        flatten(device, name, &mut fields);
        Some(fields)
    }
}

fn flatten(of: &Value, path: &str, into: &mut Vec<(String, usize)>) {
    for field in of["fields"].as_array().into_iter().flatten() {
        let name = format!("{path}.{}", field["name"].as_str().unwrap_or("?"));
        let times = field["array_len"].as_u64().unwrap_or(1);
        for _ in 0..times {
            if field["struct"].is_object() {
                flatten(&field["struct"], &name, into);
            } else {
                let bytes = usize::try_from(field["size"].as_u64().unwrap_or(0)).unwrap();
                into.push((name.clone(), bytes));
            }
        }
    }
    for part in of["subsections"].as_array().into_iter().flatten() {
        let name = part["vmsd_name"].as_str().unwrap_or("?");
        // Mark, length, name, version.
        into.push((format!("{path}/{name}"), 1 + 1 + name.len() + 4));
        flatten(part, &format!("{path}/{name}"), into);
    }
}
