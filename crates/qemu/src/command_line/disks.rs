//! Disks whose image is not that of the command line any more: after a snapshot, after a block job
//! that switched to its target, or with another medium. A destination that opened the old image
//! would run the guest on a stale disk.

use serde_json::{Value, json};

use super::destination_line::DestinationLine;
use super::{backends, plugged};
use crate::disks::{device_id, image_file, is_file};
use crate::process::options::Opt;
use crate::qmp::{Client, QmpError};

/// What a disk reads now.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Image {
    /// The block node.
    node: String,
    file: String,
    /// The driver of the node: the image's format.
    format: String,
    read_only: bool,
}

/// A row of `query-block`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Disk {
    /// The name of its `-drive`; empty: it has a `-blockdev`.
    drive: String,
    /// The device: its id, or its path in QEMU's object tree.
    device: String,
    /// `None`: it has no medium.
    image: Option<Image>,
}

impl Disk {
    fn from_row(row: &Value) -> Self {
        let text = |row: &Value, key: &str| {
            let text = row.get(key).and_then(Value::as_str);
            text.unwrap_or_default().to_owned()
        };
        let image = |row: &Value| Image {
            node: text(row, "node-name"),
            file: image_file(&text(row, "file")),
            format: text(row, "drv"),
            read_only: row.get("ro").and_then(Value::as_bool) == Some(true),
        };
        let path = text(row, "qdev");
        Self {
            drive: text(row, "device"),
            device: device_id(&path).unwrap_or(&path).to_owned(),
            image: row.get("inserted").map(image),
        }
    }

    /// What it is called in a note.
    fn name(&self) -> &str {
        if self.drive.is_empty() {
            &self.device
        } else {
            &self.drive
        }
    }
}

/// Whether two names mean the same image. `None`: they do not tell, because QEMU reports network
/// disks in another notation, and some by their options, which it may cut off.
fn is_same(on_line: &str, now: &str) -> Option<bool> {
    let on_line = on_line.strip_prefix("file:").unwrap_or(on_line);
    let unknown = now.starts_with("json:") || !(is_file(on_line) || is_file(now));
    match on_line == now {
        true => Some(true),
        false if unknown => None,
        false => Some(false),
    }
}

/// Whether the option lets writes to a disk go to a temporary file (`snapshot=on`).
pub(super) fn is_temporary(option: &Opt) -> bool {
    option.is("snapshot") || (option.is("drive") && is_on(option, "snapshot"))
}

fn is_on(option: &Opt, key: &str) -> bool {
    matches!(
        option.get(key, false).as_deref(),
        Some("on" | "true" | "yes")
    )
}

/// Makes the line name the images that the disks have now.
pub(super) fn update(client: &mut Client, line: &mut DestinationLine) -> Result<(), QmpError> {
    if line.options.iter().any(is_temporary) {
        // No destination can have these disks, and a note says so.
        return Ok(());
    }
    let rows = client.execute("query-block", json!({}))?;
    let rows = rows
        .as_array()
        .ok_or_else(|| QmpError::unexpected("query-block", "not a list"))?;
    for row in rows {
        let disk = Disk::from_row(row);
        if let Some(note) = by_drive(line, &disk) {
            line.notes.extend(note);
        } else if !by_node(client, line, &disk)? {
            by_file(line, &disk);
        }
    }
    let drives: Vec<_> = rows.iter().map(|row| Disk::from_row(row).drive).collect();
    leave_out_drives(line, &drives);
    leave_out_removed(client, line)
}

/// Leaves out `-drive` options of disks that do not exist any more. QEMU removes such a disk when
/// its device is unplugged. One without an id is not known by its option.
fn leave_out_drives(line: &mut DestinationLine, existing: &[String]) {
    let mut gone = Vec::new();
    line.options.retain(|option| {
        let id = option.is("drive").then(|| option.get("id", false));
        let keep = id.flatten().is_none_or(|id| existing.contains(&id));
        if !keep {
            gone.push(option.value().to_owned());
        }
        keep
    });
    for value in gone {
        line.note(format!("left out, because it was removed: -drive {value}"));
    }
}

/// Corrects the `-drive` option of a disk; the inner value is a note. `None`: it has none.
fn by_drive(line: &mut DestinationLine, disk: &Disk) -> Option<Option<String>> {
    if disk.drive.is_empty() {
        return None;
    }
    let mut options = line.options.iter_mut();
    let option = options.find(|option| {
        option.is("drive") && option.get("id", false).as_deref() == Some(disk.drive.as_str())
    })?;
    let before = option.value().to_owned();
    let change = correct(option, disk.image.as_ref())?;
    Some(change.map(|now| {
        format!(
            "the disk {} was changed to {now} after QEMU was started; it was: -drive {before}",
            disk.drive
        )
    }))
}

/// Makes a `-drive` option name this image; what it names now, if it named another. `None`: what it
/// names is not known.
fn correct(option: &mut Opt, image: Option<&Image>) -> Option<Option<String>> {
    let keys = ["file", "file.filename"];
    let named = keys
        .iter()
        .find_map(|key| Some((*key, option.get(key, false)?)));
    let Some(image) = image else {
        let Some((key, _)) = named else {
            return Some(None);
        };
        for key in [key, "file.driver", "format", "driver"] {
            option.set(key, None);
        }
        return Some(Some("no medium".to_owned()));
    };
    match &named {
        Some((_, file)) if is_same(file, &image.file) == Some(true) => return Some(None),
        Some((_, file)) if is_same(file, &image.file).is_none() => return None,
        // A network disk by its single options.
        None if ["file.driver", "driver"]
            .iter()
            .any(|key| option.get(key, false).is_some()) =>
        {
            return None;
        }
        _ => {}
    }
    let key = named.map_or("file", |(key, _)| key);
    option.set(key, Some(&image.file));
    let format = match option.get("driver", false) {
        Some(_) => "driver",
        None => "format",
    };
    option.set(format, Some(&image.format));
    let is_cd = option.get("media", false).as_deref() == Some("cdrom");
    let says_read_only = is_on(option, "readonly") || is_on(option, "read-only");
    if image.read_only && !is_cd && !says_read_only {
        option.set("readonly", Some("on"));
    }
    Some(Some(image.file.clone()))
}

/// Corrects the node of a `-device`. `false`: there is no such option.
fn by_node(client: &mut Client, line: &mut DestinationLine, disk: &Disk) -> Result<bool, QmpError> {
    let is_it = |option: &Opt| {
        option.is("device") && option.get("id", false).as_deref() == Some(disk.device.as_str())
    };
    if disk.device.is_empty() || !disk.drive.is_empty() {
        return Ok(false);
    }
    let Some(before) = line.options.iter().find(|option| is_it(option)) else {
        return Ok(false);
    };
    let before = before.get("drive", false);
    let now = disk
        .image
        .as_ref()
        .map(|image| backends::node_name(&image.node));
    if before == now {
        return Ok(true);
    }
    let name = &disk.device;
    if let Some(image) = &disk.image
        && !plugged::add_blockdevs(client, line, &image.node)?
    {
        line.note(format!(
            "the disk {name} was changed to {} (block node {}): add a -blockdev for it, and give \
             it to this device by drive=; the line names the old disk",
            image.file, image.node
        ));
        return Ok(true);
    }
    if let Some(option) = line.options.iter_mut().find(|option| is_it(option)) {
        option.set("drive", now.as_deref());
    }
    let file = disk
        .image
        .as_ref()
        .map_or("no medium", |image| image.file.as_str());
    let before = before.map_or_else(String::new, |node| {
        format!(" ({node} before: leave out its -blockdev unless another one needs it)")
    });
    line.note(format!(
        "the disk {name} was changed to {file} after QEMU was started{before}"
    ));
    Ok(true)
}

/// A disk whose option is not known: whether the line names its file at all.
fn by_file(line: &mut DestinationLine, disk: &Disk) {
    let Some(image) = &disk.image else {
        return;
    };
    let names_it = |option: &Opt| {
        let keys = ["file", "filename", "file.filename"];
        let is_it = |file: &str| is_same(file, &image.file) == Some(true);
        // Values are nested in JSON.
        let in_json = option.value().trim_start().starts_with('{')
            && option.value().contains(&format!("\"{}\"", image.file));
        in_json
            || option.value() == image.file
            || keys
                .iter()
                .any(|key| option.get(key, false).is_some_and(|file| is_it(&file)))
    };
    if image.file.is_empty() || line.options.iter().any(names_it) {
        return;
    }
    if is_file(&image.file) {
        line.note(format!(
            "the disk {} was changed to {} ({}) after QEMU was started, or is in a file of \
             -readconfig: correct its option, which may name the old disk",
            disk.name(),
            image.file,
            image.format
        ));
    } else {
        line.note(format!(
            "the disk {} is {} ({}) now: check that its option names the same, because QEMU may \
             have got another one after it was started",
            disk.name(),
            image.file,
            image.format
        ));
    }
}

/// Leaves out block nodes that do not exist any more.
fn leave_out_removed(client: &mut Client, line: &mut DestinationLine) -> Result<(), QmpError> {
    let command = "query-named-block-nodes";
    let nodes = client.execute(command, json!({ "flat": true }))?;
    let existing: Vec<_> = nodes
        .as_array()
        .ok_or_else(|| QmpError::unexpected(command, "not a list"))?
        .iter()
        .filter_map(|node| node.get("node-name")?.as_str())
        .map(backends::node_name)
        .collect();
    let mut gone = Vec::new();
    line.options.retain(|option| {
        let node = option
            .is("blockdev")
            .then(|| option.get("node-name", false));
        let keep = node.flatten().is_none_or(|node| existing.contains(&node));
        if !keep {
            gone.push(option.value().to_owned());
        }
        keep
    });
    for value in gone {
        line.note(format!(
            "left out, because it was removed: -blockdev {value}"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(file: &str, format: &str) -> Image {
        Image {
            node: "#block9".to_owned(),
            file: file.to_owned(),
            format: format.to_owned(),
            read_only: false,
        }
    }

    #[test]
    fn a_drive_option_names_the_image_that_the_disk_has_now() {
        let corrected = |value: &str, image: Option<Image>| {
            let mut option = Opt::new("-drive", value);
            let change = correct(&mut option, image.as_ref());
            (option.value().to_owned(), change)
        };
        // After a snapshot.
        assert_eq!(
            corrected(
                "file=/a.raw,format=raw,id=d",
                Some(image("/b,c.qcow2", "qcow2"))
            ),
            (
                "file=/b,,c.qcow2,format=qcow2,id=d".to_owned(),
                Some(Some("/b,c.qcow2".to_owned()))
            )
        );
        // A medium was inserted, or taken out.
        assert_eq!(
            corrected("if=none,id=cd,media=cdrom", Some(image("/cd.iso", "raw"))).0,
            "if=none,id=cd,media=cdrom,file=/cd.iso,format=raw"
        );
        assert_eq!(
            corrected("file=/cd.iso,format=raw,id=cd", None),
            ("id=cd".to_owned(), Some(Some("no medium".to_owned())))
        );
        for (value, file) in [
            ("file=/a,id=d", "/a"),
            ("file=file:/a,id=d", "/a"),
            ("file.filename=/a,id=d", "/a"),
            ("file=nbd://localhost:10809,id=d", "nbd://localhost:10809"),
        ] {
            let unchanged = (value.to_owned(), Some(None));
            assert_eq!(corrected(value, Some(image(file, "raw"))), unchanged);
        }
        // Whether it is the same is not known.
        for (value, now) in [
            ("driver=nbd,server.type=unix,id=d", "nbd+unix://x"),
            ("file=nbd:localhost:10809,id=d", "nbd://localhost:10809"),
            ("file=/a,id=d", "json:{\"driver\": \"nbd\", \"server.ho"),
        ] {
            let unknown = (value.to_owned(), None);
            assert_eq!(corrected(value, Some(image(now, "raw"))), unknown);
        }
    }

    #[test]
    fn disks_as_qemu_lists_them() {
        let row = json!({ "device": "", "qdev": "/machine/peripheral/d0/virtio-backend",
            "inserted": { "node-name": "n", "drv": "qcow2", "ro": false,
                "file": "json:{\"backing\": {\"filename\": \"/old\"}, \"driver\": \"qcow2\", \
                         \"file\": {\"driver\": \"file\", \"filename\": \"/new\"}}" } });
        let disk = Disk::from_row(&row);
        assert_eq!(disk.device, "d0");
        assert_eq!(disk.image.unwrap().file, "/new");
        let empty = Disk::from_row(&json!({ "device": "ide1-cd0", "qdev": "cd" }));
        assert_eq!((empty.device.as_str(), empty.image), ("cd", None));
    }

    /// QEMU removes it with the device that was unplugged.
    #[test]
    fn the_drive_of_an_unplugged_disk_is_left_out() {
        let mut line = DestinationLine {
            program: String::new(),
            options: ["if=none,id=d0,file=/a", "if=none,id=d1,file=/b", "file=/c"]
                .map(|value| Opt::new("-drive", value))
                .into(),
            notes: Vec::new(),
        };
        leave_out_drives(&mut line, &["d0".to_owned(), "ide0-hd0".to_owned()]);
        let left: Vec<_> = line.options.iter().map(Opt::value).collect();
        assert_eq!(left, ["if=none,id=d0,file=/a", "file=/c"]);
        let note = "left out, because it was removed: -drive if=none,id=d1,file=/b";
        assert_eq!(line.notes, [note]);
    }

    #[test]
    fn a_disk_that_no_option_names_is_pointed_out() {
        let disk = |file| Disk {
            drive: "ide0-hd0".to_owned(),
            device: String::new(),
            image: Some(image(file, "raw")),
        };
        let mut line = DestinationLine {
            program: String::new(),
            options: vec![Opt::new("-hda", "/a"), Opt::new("-drive", "file=/b,,c")],
            notes: Vec::new(),
        };
        by_file(&mut line, &disk("/a"));
        by_file(&mut line, &disk("/b,c"));
        assert_eq!(line.notes, [""; 0]);
        by_file(&mut line, &disk("/snapshot"));
        assert!(line.notes[0].contains("ide0-hd0 was changed to /snapshot"));
        by_file(&mut line, &disk("json:{\"driver\": \"nbd\", \"server.ho"));
        assert!(line.notes[1].contains("check that its option names the same"));
    }
}
