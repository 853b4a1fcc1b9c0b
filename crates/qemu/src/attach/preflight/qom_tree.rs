//! All objects of the machine, from QEMU's `info qom-tree`.
//!
//! QMP's `qom-list` lists one node at a time, which would take hundreds of commands
//! right before the guest is paused.

use serde_json::json;

use crate::qmp::{Client, QmpError};

/// The QOM folders of users' devices: those with an id, and those without.
pub(super) const DEVICE_FOLDERS: [&str; 2] = ["/machine/peripheral", "/machine/peripheral-anon"];

/// The QOM folder of the board's parts and of devices that QEMU makes itself, for an option such as
/// `-nic` or by default.
pub(super) const UNATTACHED: &str = "/machine/unattached";

/// An object of the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Object {
    /// Its path, such as `/machine/peripheral/net0`.
    pub(crate) path: String,
    /// Its QOM type.
    pub(crate) kind: String,
}

impl Object {
    /// Whether it is a part of the object at `path`, at any depth.
    pub(crate) fn is_below(&self, path: &str) -> bool {
        let rest = self.path.strip_prefix(path);
        rest.is_some_and(|rest| rest.starts_with('/'))
    }
}

/// All objects below `/machine`, in QEMU's order.
pub(crate) fn objects(client: &mut Client) -> Result<Vec<Object>, QmpError> {
    let command = "info qom-tree";
    let answer = client.execute("human-monitor-command", json!({ "command-line": command }))?;
    let text = answer.as_str().unwrap_or_default();
    parse(text)
        .ok_or_else(|| QmpError::unexpected(command, text.chars().take(200).collect::<String>()))
}

/// Parses one line for each object: two blanks for each level, `/`, its name, its
/// type in parentheses. `None` if the text has another form.
fn parse(text: &str) -> Option<Vec<Object>> {
    let mut found: Vec<Object> = Vec::new();
    let mut above: Vec<&str> = Vec::new();
    for line in text
        .lines()
        .map(str::trim_end)
        .filter(|line| !line.is_empty())
    {
        let name = line.trim_start_matches(' ');
        let indent = line.len() - name.len();
        let level = indent / 2;
        if indent % 2 != 0 || level > above.len() {
            return None;
        }
        let (name, kind) = name
            .strip_prefix('/')?
            .strip_suffix(')')?
            .rsplit_once(" (")?;
        above.truncate(level);
        above.push(name);
        found.push(Object {
            path: format!("/{}", above.join("/")),
            kind: kind.to_owned(),
        });
    }
    // A machine always has containers.
    (found.len() > 1).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_follow_from_indentation() {
        let text = "/machine (pc-q35-7.2-machine)\r\n\
                    \x20 /fw_cfg (fw_cfg_io)\r\n\
                    \x20   /\\x2from@etc\\x2facpi (tables)[0] (memory-region)\r\n\
                    \x20 /peripheral (container)\r\n\
                    \x20   /rp (pcie-root-port)\r\n\
                    \x20     /rp (PCIE)\r\n\
                    \x20 /unattached (container)\r\n";
        let objects = parse(text).unwrap();
        let lines: Vec<_> = objects
            .iter()
            .map(|object| (object.path.as_str(), object.kind.as_str()))
            .collect();
        assert_eq!(
            lines,
            [
                ("/machine", "pc-q35-7.2-machine"),
                ("/machine/fw_cfg", "fw_cfg_io"),
                (
                    "/machine/fw_cfg/\\x2from@etc\\x2facpi (tables)[0]",
                    "memory-region"
                ),
                ("/machine/peripheral", "container"),
                ("/machine/peripheral/rp", "pcie-root-port"),
                ("/machine/peripheral/rp/rp", "PCIE"),
                ("/machine/unattached", "container"),
            ]
        );
    }

    #[test]
    fn other_text_is_not_an_empty_machine() {
        for text in [
            "",
            "unknown command: 'info qom-tree'\r\n",
            "/machine (none-machine)\r\n",
            "/machine (x)\r\n    /deep (y)\r\n",
            "/machine (x)\r\n  peripheral (y)\r\n",
            "/machine (x)\r\n  /peripheral\r\n",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
