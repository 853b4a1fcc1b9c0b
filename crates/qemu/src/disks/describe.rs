//! A disk, as described to the other side.

use hikkoshi_wire::{Backing, Disk, DiskImage, DiskKind, DiskPlan, MAX_BACKING, MAX_TEXT, text};

use super::image::ImageFile;
use super::list::{BlockDisk, is_file};
use super::network;
use crate::disks::image_file;

/// Formats of images. Other drivers are filters, such as `throttle`.
const FORMATS: [&str; 10] = [
    "luks",
    "parallels",
    "qcow",
    "qcow2",
    "qed",
    "raw",
    "vdi",
    "vhdx",
    "vmdk",
    "vpc",
];

/// The disk, whose image's file was perhaps found, and those of the images below.
pub(crate) fn describe(
    disk: &BlockDisk,
    image: Option<&ImageFile>,
    below: &[Option<ImageFile>],
    plan: DiskPlan,
) -> Disk {
    let kind = match (disk.is_flash(), disk.removable) {
        (true, _) => DiskKind::Flash,
        (false, true) => DiskKind::Removable,
        (false, false) => DiskKind::Fixed,
    };
    let format = format(&disk.driver);
    // Only of a medium can it be said that nobody writes to it.
    let is_medium = disk.read_only && kind == DiskKind::Removable && format == "raw";
    let checksum = image.filter(|_| is_medium);
    Disk {
        device: label(&disk.device),
        drive: label(&disk.drive),
        place: label(&disk.place),
        bytes: Some(disk.bytes),
        read_only: disk.read_only,
        kind,
        plan,
        image: DiskImage {
            format: format.into(),
            encrypted: disk.encrypted,
            checksum: checksum.and_then(|image| image.checksum(disk.bytes)),
            ..self::image(&disk.file, image)
        },
        backing: backing(disk, below),
    }
}

/// The images below the disk's own, to which nobody writes, with their files as far as they were
/// found.
fn backing(disk: &BlockDisk, files: &[Option<ImageFile>]) -> Backing {
    let Some((_, below)) = disk.images.split_first() else {
        return Backing::Unknown;
    };
    if below.len() > MAX_BACKING || below.len() != files.len() {
        return Backing::Unknown;
    }
    let images = below.iter().zip(files).map(|(described, file)| DiskImage {
        checksum: file.as_ref().and_then(ImageFile::whole_checksum),
        ..image(described, file.as_ref())
    });
    Backing::Known(images.collect())
}

/// What an image is known by, of which QEMU says this, and whose file was perhaps found.
fn image(described: &str, found: Option<&ImageFile>) -> DiskImage {
    let file = image_file(described);
    let on_network = found.is_none() && !is_file(&file);
    let mut names = found.map_or_else(Vec::new, |image| image.names.clone());
    if on_network {
        names.extend(network::name_of(described));
    }
    let storage = match found {
        Some(image) if image.is_device => "a device".to_owned(),
        Some(image) => image.file_system.clone(),
        None if on_network => network::protocol(described).unwrap_or_default(),
        None => String::new(),
    };
    DiskImage {
        file: label(&without_credentials(&file)),
        storage: label(&storage),
        names,
        ..DiskImage::default()
    }
}

fn format(driver: &str) -> &str {
    match driver {
        // Without a format above.
        "file" | "host_device" | "host_cdrom" => "raw",
        driver if FORMATS.contains(&driver) => driver,
        _ => "",
    }
}

/// A text of QEMU's that a message has room for.
fn label(found: &str) -> Box<str> {
    text::at_most(&text::one_line(found), MAX_TEXT / 4).into()
}

/// A URL without the user and the password before its host; options only by their driver.
fn without_credentials(file: &str) -> String {
    if file.starts_with("json:") {
        return network::protocol(file).unwrap_or_default();
    }
    let Some((scheme, rest)) = file.split_once("://") else {
        return file.to_owned();
    };
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, rest) = rest.split_at(end);
    let server = authority
        .rsplit_once('@')
        .map_or(authority, |(_, server)| server);
    format!("{scheme}://{server}{rest}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_a_disk_has_no_password() {
        for (file, expected) in [
            ("/a/b@c.raw", "/a/b@c.raw"),
            ("iscsi://me%secret@host/iqn/1", "iscsi://host/iqn/1"),
            ("ssh://me@host/a@b", "ssh://host/a@b"),
            (r#"json:{"driver":"curl","password":"secret"}"#, "curl"),
        ] {
            assert_eq!(without_credentials(file), expected);
        }
    }

    #[test]
    fn a_disk_is_described_by_what_it_is_and_not_by_its_filters() {
        let of = |driver: &str, file: &str| {
            let disk = BlockDisk {
                device: "vda".into(),
                driver: driver.into(),
                file: file.into(),
                bytes: 1,
                ..BlockDisk::default()
            };
            let found = describe(&disk, None, &[], DiskPlan::Same);
            (
                found.image.format.to_string(),
                found.image.storage.to_string(),
                found.image.names.len(),
            )
        };
        let expected = |format: &str, storage: &str, names| (format.into(), storage.into(), names);
        assert_eq!(of("qcow2", "/a"), expected("qcow2", "", 0));
        assert_eq!(of("file", "/a"), expected("raw", "", 0));
        assert_eq!(of("throttle", "nbd://store/d"), expected("", "nbd", 1));
        assert_eq!(
            of("raw", "nbd+unix:///d?socket=/s"),
            expected("raw", "nbd", 0)
        );
    }

    #[test]
    fn the_images_below_are_described_if_all_are_known() {
        let base = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(base.path(), "content").unwrap();
        let file = base.path().to_str().unwrap();
        let disk = |below: &[&str]| BlockDisk {
            images: ["/top"]
                .iter()
                .chain(below)
                .map(|&file| file.to_owned())
                .collect(),
            ..BlockDisk::default()
        };
        let of = |disk: &BlockDisk, files: &[Option<ImageFile>]| {
            describe(disk, None, files, DiskPlan::Same).backing
        };
        let found = ImageFile::of_process_file(std::process::id(), file);
        let backing = of(&disk(&[file, "nbd://store/d"]), &[found.clone(), None]);
        let images = backing.images();
        assert_eq!(images.len(), 2, "{backing:?}");
        assert_eq!(
            (&*images[0].file, &images[0].names),
            (file, &found.unwrap().names)
        );
        assert!(images[0].checksum.is_some());
        assert_eq!((&*images[1].storage, images[1].names.len()), ("nbd", 1));
        assert_eq!(of(&disk(&[]), &[]), Backing::Known(Vec::new()));
        assert_eq!(of(&BlockDisk::default(), &[]), Backing::Unknown);
        let many = [file; MAX_BACKING + 1];
        let none = vec![None; many.len()];
        assert_eq!(of(&disk(&many), &none), Backing::Unknown);
        assert_eq!(
            of(&disk(&many[1..]), &none[1..]).images().len(),
            MAX_BACKING
        );
    }
}
