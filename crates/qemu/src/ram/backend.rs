//! Queries the guest's memory backends.

use serde_json::Value;

use crate::qmp::qom::{children, property};
use crate::qmp::{Client, QmpError};

/// A memory backend object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Backend {
    /// Its id.
    pub(crate) id: String,
    /// Its QOM type, such as `memory-backend-file`.
    pub(crate) kind: String,
    /// Its size in bytes.
    pub(crate) bytes: u64,
    /// Whether writes go to the file (`share=on`).
    pub(crate) share: bool,
    /// Whether host memory is reserved when it is mapped (hugetlbfs).
    pub(crate) reserve: bool,
    /// Whether it is mapped for reading only.
    pub(crate) readonly: bool,
    /// The file or folder, for file backends.
    pub(crate) path: Option<String>,
    /// Where it begins in the file, in bytes.
    pub(crate) offset: u64,
}

impl Backend {
    /// Whether the RAM block with this name is its memory. Old machine types name the block
    /// after the object's whole path.
    pub(crate) fn is(&self, block: &str) -> bool {
        block == self.id || block == self.qom_path()
    }

    /// Its path in QEMU's object tree.
    pub(crate) fn qom_path(&self) -> String {
        format!("/objects/{}", self.id)
    }
}

/// All memory backends, with those that the machine created itself.
pub(crate) fn list(client: &mut Client) -> Result<Vec<Backend>, QmpError> {
    let mut found = Vec::new();
    for (id, kind) in children(client, "/objects")? {
        if !kind.starts_with("memory-backend-") {
            continue;
        }
        let path = format!("/objects/{id}");
        let mut get = |name| property(client, &path, name);
        let flag = |value: Option<Value>, absent| {
            value.as_ref().and_then(Value::as_bool).unwrap_or(absent)
        };
        let number = |value: Option<Value>| value.as_ref().and_then(Value::as_u64);
        found.push(Backend {
            bytes: number(get("size")?)
                .ok_or_else(|| QmpError::unexpected("qom-get", format!("no size of {path}")))?,
            share: flag(get("share")?, false),
            reserve: flag(get("reserve")?, true),
            readonly: flag(get("readonly")?, false),
            path: get("mem-path")?.and_then(|path| path.as_str().map(str::to_owned)),
            // QEMU 8.1 and later.
            offset: number(get("offset")?).unwrap_or(0),
            id,
            kind,
        });
    }
    Ok(found)
}
