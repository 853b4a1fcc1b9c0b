//! Disk images: created for a test, and checked at its end.

use crate::artifacts::{debian_disk, qemu_img};
use crate::{Lab, LabError, spawn};
use hikkoshi_checked_pages::page::{self, PAGE_SIZE, PageKind, WORDS, Words};
use std::fs::{self, File};
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The image's format.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum DiskFormat {
    /// The disk's bytes in order.
    Raw,
    /// QEMU's own format, with tables of clusters.
    Qcow2,
}

impl DiskFormat {
    /// The name of QEMU's option value.
    pub fn option(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Qcow2 => "qcow2",
        }
    }
}

/// The content of a disk.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum DiskContent {
    /// Numbered pages, `mib` MiB of them.
    Blocks {
        /// Its size.
        mib: u64,
    },
    /// An ext4 file system of `mib` MiB, with a file `blocks` of `blocks_mib` MiB of numbered
    /// pages.
    FileSystem {
        /// The disk's size.
        mib: u64,
        /// The file's size; well below the disk's.
        blocks_mib: u64,
    },
    /// The file system of the Debian guest, qcow2: what changes is stored in an image of its own,
    /// above the one that `make guest-devices` provides.
    Debian,
}

/// The state of a valid image.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct DiskState {
    /// Number of numbered pages; none in [`DiskContent::Debian`].
    pub pages: u64,
    /// The pages among them that the guest has written.
    pub written: u64,
}

/// A disk image on the build folder's file system, removed on drop.
#[derive(Debug)]
pub struct DiskImage {
    path: PathBuf,
    format: DiskFormat,
    content: DiskContent,
    /// Keeps the folder of the image.
    _lab: Lab,
}

impl DiskImage {
    /// Creates an image; `name` must be unique in its lab.
    ///
    /// # Errors
    /// When there is not enough space, or a tool is missing or fails.
    pub fn new(
        lab: &Lab,
        name: &str,
        format: DiskFormat,
        content: DiskContent,
    ) -> Result<Self, LabError> {
        let folder = lab.disk_folder()?;
        let image = Self {
            path: folder.join(format!("{name}.{}", format.option())),
            format,
            content,
            _lab: lab.clone(),
        };
        let raw = match format {
            DiskFormat::Raw => image.path.clone(),
            DiskFormat::Qcow2 => folder.join(format!("{name}.new")),
        };
        match content {
            DiskContent::Blocks { mib } => write_blocks(&raw, mib)?,
            DiskContent::FileSystem { mib, blocks_mib } => make_file_system(&raw, mib, blocks_mib)?,
            DiskContent::Debian => {
                let mut create = Command::new(qemu_img()?);
                create.args(["create", "-q", "-f", DiskFormat::Qcow2.option()]);
                create.args(["-F", DiskFormat::Qcow2.option(), "-b"]);
                spawn::run(create.arg(debian_disk()?).arg(&image.path))?;
                return Ok(image);
            }
        }
        if format == DiskFormat::Qcow2 {
            let mut convert = Command::new(qemu_img()?);
            convert.args(["convert", "-f", "raw", "-O", "qcow2"]);
            spawn::run(convert.arg(&raw).arg(&image.path))?;
            remove(&raw)?;
        }
        Ok(image)
    }

    /// Creates an image in `folder` that holds nothing, and has room for `content`.
    ///
    /// # Errors
    /// When qemu-img is missing or fails.
    pub fn blank(
        lab: &Lab,
        folder: Option<&Path>,
        name: &str,
        format: DiskFormat,
        content: DiskContent,
    ) -> Result<Self, LabError> {
        let folder = folder.map_or_else(|| lab.disk_folder(), |folder| Ok(folder.to_owned()))?;
        let image = Self {
            path: folder.join(format!("{name}.{}", format.option())),
            format,
            content,
            _lab: lab.clone(),
        };
        let (DiskContent::Blocks { mib } | DiskContent::FileSystem { mib, .. }) = content else {
            return Err(image.damaged("the size of Debian's disk is not known".to_owned()));
        };
        let mut create = Command::new(qemu_img()?);
        create.args(["create", "-q", "-f", format.option()]);
        spawn::run(create.arg(&image.path).arg(format!("{mib}M")))?;
        Ok(image)
    }

    /// Whether both images have the same content now, whoever uses them.
    ///
    /// # Errors
    /// When qemu-img is missing or cannot read one.
    pub fn has_content_of(&self, other: &Self) -> Result<bool, LabError> {
        let mut compare = Command::new(qemu_img()?);
        compare.args(["compare", "-q", "-U"]);
        compare.args(["-f", self.format.option(), "-F", other.format.option()]);
        let output = compare.arg(&self.path).arg(&other.path).output();
        let output = output.map_err(|source| LabError::Start {
            program: "qemu-img".to_owned(),
            source,
        })?;
        // qemu-img(1): 1 if they differ.
        match output.status.code() {
            Some(0) => Ok(true),
            Some(1) => Ok(false),
            _ => Err(self.damaged(format!(
                "qemu-img compare: {}",
                String::from_utf8_lossy(&output.stderr)
            ))),
        }
    }

    /// Makes an internal snapshot of an image that no QEMU uses.
    ///
    /// # Errors
    /// When qemu-img is missing or fails.
    pub fn add_snapshot(&self, name: &str) -> Result<(), LabError> {
        let mut snapshot = Command::new(qemu_img()?);
        snapshot.args(["snapshot", "-c", name]);
        spawn::run(snapshot.arg(&self.path)).map(drop)
    }

    /// Adds a dirty bitmap to an image that no QEMU uses.
    ///
    /// # Errors
    /// When qemu-img is missing or fails.
    pub fn add_bitmap(&self, name: &str) -> Result<(), LabError> {
        let mut bitmap = Command::new(qemu_img()?);
        bitmap.args(["bitmap", "--add"]).arg(&self.path).arg(name);
        spawn::run(&mut bitmap).map(drop)
    }

    /// The image's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The image's format.
    pub fn format(&self) -> DiskFormat {
        self.format
    }

    /// The content that the image was created with.
    pub fn content(&self) -> DiskContent {
        self.content
    }

    /// Checks the image's structures, its file system, and that each numbered page is complete and
    /// in its place. The QEMU that ran the guest must have quit.
    ///
    /// # Errors
    /// When something is damaged, with the message of the tool that found it.
    pub fn check(&self) -> Result<DiskState, LabError> {
        self.check_image(false)
    }

    /// Checks the image after the QEMU that ran the guest was killed: clusters that were allocated
    /// for pending writes may be left over.
    ///
    /// # Errors
    /// When something is damaged, with the message of the tool that found it.
    pub fn check_after_kill(&self) -> Result<DiskState, LabError> {
        self.check_image(true)
    }

    fn check_image(&self, leaks: bool) -> Result<DiskState, LabError> {
        let copy = self.path.with_extension("checked");
        let mut tool = Command::new(qemu_img()?);
        if self.format == DiskFormat::Qcow2 {
            self.check_clusters(leaks)?;
        }
        tool.args(["convert", "-f", self.format.option(), "-O", "raw"]);
        spawn::run(tool.arg(&self.path).arg(&copy))?;
        let blocks = match self.content {
            DiskContent::Blocks { .. } => copy.clone(),
            DiskContent::FileSystem { .. } => {
                check_file_system(&copy)?;
                let blocks = self.path.with_extension("blocks");
                let dump = format!("dump /blocks {}", blocks.display());
                spawn::run(Command::new("debugfs").args(["-R", &dump]).arg(&copy))?;
                remove(&copy)?;
                blocks
            }
            DiskContent::Debian => {
                check_file_system(&copy)?;
                remove(&copy)?;
                return Ok(DiskState {
                    pages: 0,
                    written: 0,
                });
            }
        };
        let state = check_blocks(&blocks)?;
        remove(&blocks)?;
        let mib = match self.content {
            DiskContent::Blocks { mib } => mib,
            DiskContent::FileSystem { blocks_mib, .. } => blocks_mib,
            DiskContent::Debian => 0,
        };
        if state.pages != mib * 256 {
            return Err(self.damaged(format!(
                "it has {} pages instead of {}",
                state.pages,
                mib * 256
            )));
        }
        Ok(state)
    }

    fn check_clusters(&self, leaks: bool) -> Result<(), LabError> {
        let mut check = Command::new(qemu_img()?);
        check.args(["check", "-f", "qcow2"]).arg(&self.path);
        let output = check.output().map_err(|source| LabError::Start {
            program: "qemu-img".to_owned(),
            source,
        })?;
        // 3: clusters without a reference, and no other error (qemu-img(1)).
        match output.status.code() {
            Some(0) => Ok(()),
            Some(3) if leaks => Ok(()),
            _ => Err(self.damaged(format!(
                "qemu-img check: {}{}",
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            ))),
        }
    }

    fn damaged(&self, how: String) -> LabError {
        LabError::DamagedDisk {
            path: self.path.clone(),
            how,
        }
    }
}

impl Drop for DiskImage {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn remove(path: &Path) -> Result<(), LabError> {
    fs::remove_file(path).map_err(LabError::file("removing", path))
}

fn write_blocks(path: &Path, mib: u64) -> Result<(), LabError> {
    let written = || -> std::io::Result<()> {
        let mut file = BufWriter::with_capacity(1 << 20, File::create(path)?);
        let mut words: Words = [0; WORDS];
        for number in 0..usize::try_from(mib * 256).unwrap_or(usize::MAX) {
            page::write(&mut words, number, 0, PageKind::Filled);
            for word in &words {
                file.write_all(&word.to_le_bytes())?;
            }
        }
        file.flush()
    };
    written().map_err(LabError::file("filling", path))
}

fn check_blocks(path: &Path) -> Result<DiskState, LabError> {
    let file = File::open(path).map_err(LabError::file("reading", path))?;
    let mut file = BufReader::with_capacity(1 << 20, file);
    let mut state = DiskState {
        pages: 0,
        written: 0,
    };
    let (mut bytes, mut words) = ([0; PAGE_SIZE], [0; WORDS]);
    while let Ok(()) = file.read_exact(&mut bytes) {
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = bytes.try_into().map_or(0, u64::from_le_bytes);
        }
        match page::identify(&words) {
            Some((number, generation)) if number == state.pages => {
                state.written += u64::from(generation > 0);
            }
            other => {
                return Err(LabError::DamagedDisk {
                    path: path.to_owned(),
                    how: format!(
                        "page {} contains {}",
                        state.pages,
                        match other {
                            Some((number, generation)) =>
                                format!("page {number} of generation {generation}"),
                            None => "no complete page".to_owned(),
                        }
                    ),
                });
            }
        }
        state.pages += 1;
    }
    Ok(state)
}

fn make_file_system(path: &Path, mib: u64, blocks_mib: u64) -> Result<(), LabError> {
    let root = path.with_extension("root");
    fs::create_dir_all(&root).map_err(LabError::file("creating", &root))?;
    write_blocks(&root.join("blocks"), blocks_mib)?;
    let mut make = Command::new("mkfs.ext4");
    make.args(["-q", "-F", "-d"]).arg(&root).arg(path);
    spawn::run(make.arg(format!("{mib}m")))?;
    fs::remove_dir_all(&root).map_err(LabError::file("removing", &root))
}

/// A machine that ends without unmounting leaves a journal to be replayed, and files that were
/// being removed: `-p` handles both and refuses any other error. After it, no error may remain.
fn check_file_system(path: &Path) -> Result<(), LabError> {
    let mut replay = Command::new("e2fsck");
    let output = replay.arg("-fp").arg(path).output();
    let output = output.map_err(|source| LabError::Start {
        program: "e2fsck".to_owned(),
        source,
    })?;
    // 0: no errors; 1: errors corrected (e2fsck(8)).
    if !matches!(output.status.code(), Some(0 | 1)) {
        return Err(LabError::DamagedDisk {
            path: path.to_owned(),
            how: format!(
                "e2fsck -fp: {}{}",
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            ),
        });
    }
    spawn::run(Command::new("e2fsck").arg("-fn").arg(path)).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn a_new_image_is_valid_in_both_formats() {
        let lab = Lab::new().unwrap();
        for format in [DiskFormat::Raw, DiskFormat::Qcow2] {
            let image = DiskImage::new(&lab, "blocks", format, DiskContent::Blocks { mib: 2 });
            let state = image.unwrap().check().unwrap();
            assert_eq!((state.pages, state.written), (512, 0));
            let content = DiskContent::FileSystem {
                mib: 16,
                blocks_mib: 2,
            };
            let image = DiskImage::new(&lab, "tree", format, content).unwrap();
            assert_eq!(image.check().unwrap().pages, 512);
        }
        let left: Vec<_> = fs::read_dir(lab.disk_folder().unwrap()).unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
    }

    #[test]
    fn images_are_compared() {
        let lab = Lab::new().unwrap();
        let content = DiskContent::Blocks { mib: 1 };
        let image = DiskImage::new(&lab, "one", DiskFormat::Raw, content).unwrap();
        let same = DiskImage::new(&lab, "same", DiskFormat::Qcow2, content).unwrap();
        let blank = DiskImage::blank(&lab, None, "blank", DiskFormat::Qcow2, content).unwrap();
        assert!(image.has_content_of(&same).unwrap());
        assert!(!image.has_content_of(&blank).unwrap());
    }

    #[test]
    fn damaged_pages_are_reported() {
        let lab = Lab::new().unwrap();
        let content = DiskContent::Blocks { mib: 1 };
        let image = DiskImage::new(&lab, "blocks", DiskFormat::Raw, content).unwrap();
        let file = File::options().write(true).open(image.path()).unwrap();
        let mut words = [0; WORDS];
        page::write(&mut words, 7, 3, PageKind::Filled);
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        file.write_all_at(&bytes, 7 * PAGE_SIZE as u64).unwrap();
        assert_eq!(image.check().unwrap().written, 1);
        file.write_all_at(&bytes, 9 * PAGE_SIZE as u64).unwrap();
        let error = image.check().unwrap_err().to_string();
        assert!(
            error.contains("page 9 contains page 7 of generation 3"),
            "{error}"
        );
        file.write_all_at(&[1; 8], 9 * PAGE_SIZE as u64).unwrap();
        let error = image.check().unwrap_err().to_string();
        assert!(
            error.contains("page 9 contains no complete page"),
            "{error}"
        );
    }

    #[test]
    fn a_damaged_file_system_is_found() {
        let lab = Lab::new().unwrap();
        let content = DiskContent::FileSystem {
            mib: 16,
            blocks_mib: 2,
        };
        let image = DiskImage::new(&lab, "tree", DiskFormat::Raw, content).unwrap();
        // Overwrites the bitmaps and the inode table of the first group.
        let file = File::options().write(true).open(image.path()).unwrap();
        file.write_all_at(&vec![0xa5; 64 << 10], 8 << 10).unwrap();
        let error = image.check().unwrap_err().to_string();
        assert!(error.contains("e2fsck"), "{error}");
    }
}
