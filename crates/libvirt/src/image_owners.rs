//! The owners of the images of a domain that has moved away.
//!
//! When a domain ends, libvirt sets the owner of its image files back to what it was before the
//! domain was started. Its own migration does without that on shared storage. The images of a
//! domain that has moved belong to the domain at the other host: that has opened them, but it opens
//! them again, for a block job, or when it is resumed if its owner had paused it. libvirt's
//! extended attributes (`trusted.libvirt.security.*`), by which it knows that others use a file, do
//! not help: each daemon ignores those that were written under another boot time, as another host
//! has. So the owner is set again.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use roxmltree::Document;
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Uid};

/// The image files of a domain, with their owners of that time.
#[derive(Debug)]
pub(crate) struct ImageOwners(Vec<Image>);

#[derive(Debug)]
struct Image {
    path: PathBuf,
    /// Opened by `O_PATH`: the same file, whatever its name is later.
    file: File,
    uid: u32,
    gid: u32,
}

impl ImageOwners {
    /// Those of the domain with this description. A file that cannot be reached is left out.
    pub(crate) fn in_description(xml: &str) -> Self {
        let images = images(xml).into_iter().filter_map(|path| {
            Image::open(&path)
                .inspect_err(|error| tracing::debug!(path = %path.display(), %error, "an image"))
                .ok()
        });
        Self(images.collect())
    }

    /// Sets them again, where they have changed. A failure is logged.
    pub(crate) fn restore(&self) {
        for image in &self.0 {
            if let Err(error) = image.restore() {
                tracing::warn!(
                    %error,
                    "setting the owner of {path} again, which libvirt has changed when the domain ended \
                     here: the guest at the destination cannot open it again ('chown {uid}:{gid} {path}')",
                    path = image.path.display(),
                    uid = image.uid,
                    gid = image.gid
                );
            }
        }
    }
}

impl Image {
    fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
        let metadata = file.metadata()?;
        Ok(Self {
            path: path.to_owned(),
            uid: metadata.uid(),
            gid: metadata.gid(),
            file,
        })
    }

    fn restore(&self) -> io::Result<()> {
        let now = self.file.metadata()?;
        if (now.uid(), now.gid()) == (self.uid, self.gid) {
            return Ok(());
        }
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        let flags = AtFlags::EMPTY_PATH;
        rustix::fs::chownat(self.file.as_fd(), "", Some(uid), Some(gid), flags)?;
        tracing::debug!(path = %self.path.display(), self.uid, self.gid, "the image's owner is set again");
        Ok(())
    }
}

/// The files of the disks in a domain's description, without those of backing chains, which are
/// only read.
fn images(xml: &str) -> Vec<PathBuf> {
    let Ok(document) = Document::parse(xml) else {
        return Vec::new();
    };
    let disks = document
        .descendants()
        .filter(|node| node.has_tag_name("disk"));
    let sources = disks.filter_map(|disk| disk.children().find(|node| node.has_tag_name("source")));
    sources
        .filter_map(|source| source.attribute("file").map(PathBuf::from))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::chown;

    use super::*;

    #[test]
    fn the_owners_of_a_domains_image_files_are_set_again() {
        let folder = tempfile::tempdir().unwrap();
        let [image, backing, other] = ["image", "backing", "other"].map(|name| {
            let path = folder.path().join(name);
            File::create(&path).unwrap();
            path
        });
        let xml = format!(
            "<domain><devices><disk><source file='{}'/><backingStore><source file='{}'/>\
             </backingStore></disk><disk><source file='/nowhere/disk'/></disk>\
             <disk><source dev='/dev/null'/></disk></devices></domain>",
            image.display(),
            backing.display()
        );
        let may_chown = chown(&image, Some(64055), Some(64055)).is_ok();
        if !may_chown {
            eprintln!("SKIPPED: changing the owner of a file needs CAP_CHOWN");
            return;
        }
        let owners = ImageOwners::in_description(&xml);
        for path in [&image, &backing, &other] {
            chown(path, Some(1), Some(2)).unwrap();
        }
        owners.restore();
        let owner = |path: &Path| {
            let metadata = path.metadata().unwrap();
            (metadata.uid(), metadata.gid())
        };
        assert_eq!(owner(&image), (64055, 64055));
        assert_eq!(owner(&backing), (1, 2));
        assert_eq!(owner(&other), (1, 2));
    }
}
