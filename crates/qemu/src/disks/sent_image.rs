//! What the source tells the destination of a disk, besides its size and what QEMU calls it: the
//! words of [`Disk::image`](hikkoshi_wire::Disk::image).
//!
//! ```text
//! place:pci.0/05.0/0:0:1 encrypted: HOST:8:1234 nfs:server:/images:1234 others: HOST:8:99
//! ```
//!
//! Each word is optional. A destination that does not know one takes it for the name of an image
//! that it does not have.

use hikkoshi_wire::MAX_TEXT;

/// Begins the word for the place where the guest sees the disk.
const PLACE: &str = "place:";

/// The image is encrypted, and the destination's must be.
const ENCRYPTED: &str = "encrypted:";

/// Stands before the names of other disks.
const OTHERS: &str = "others:";

/// The longest place, in bytes: a longer one is left out.
const MAX_PLACE: usize = 1024;

/// The text for a disk at this place, whose image has these names. `encrypted`: that of the
/// destination must be, too.
pub(super) fn describe(place: &str, encrypted: bool, names: &str) -> String {
    let is_word = !place.is_empty() && place.bytes().all(|byte| byte.is_ascii_graphic());
    let place = match is_word && place.len() <= MAX_PLACE {
        true => format!("{PLACE}{place}"),
        false => String::new(),
    };
    join([&place, if encrypted { ENCRYPTED } else { "" }, names])
}

/// The text `image` of a disk, followed by the names of another one. `None`: a message has no room
/// for that.
pub(super) fn others_marked(image: &str, other: &str) -> Option<String> {
    let is_marked = image.split(' ').any(|word| word == OTHERS);
    let marked = join([image, if is_marked { "" } else { OTHERS }, other]);
    (marked.len() <= MAX_TEXT).then_some(marked)
}

fn join(words: [&str; 3]) -> String {
    let words = words.into_iter().filter(|word| !word.is_empty());
    Vec::from_iter(words).join(" ")
}

/// What is said of the disk itself, among it the names of its image.
pub(crate) fn own_names(image: &str) -> &str {
    let (own, _) = image.split_once(OTHERS).unwrap_or((image, ""));
    own
}

/// Where the guest sees the disk. Empty: not known.
pub(crate) fn place(image: &str) -> &str {
    let mut words = own_names(image).split_ascii_whitespace();
    let place = words.find_map(|word| word.strip_prefix(PLACE));
    place.unwrap_or_default()
}

/// Whether the image is encrypted, and the destination's must be, too.
pub(crate) fn must_be_encrypted(image: &str) -> bool {
    let mut words = own_names(image).split_ascii_whitespace();
    words.any(|word| word == ENCRYPTED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disks::same_image;

    #[test]
    fn what_is_told_of_a_disk_is_read_again() {
        let image = describe("pci.0/05.0/0:0:1", true, "h:1 wwn:a");
        assert_eq!(image, "place:pci.0/05.0/0:0:1 encrypted: h:1 wwn:a");
        assert_eq!(place(&image), "pci.0/05.0/0:0:1");
        assert!(must_be_encrypted(&image));
        assert!(same_image(&image, "wwn:a") && !same_image(&image, "h:2"));
        let plain = describe("", false, "h:1");
        assert_eq!((&*plain, place(&plain)), ("h:1", ""));
        assert!(!must_be_encrypted(&plain));
        // Of another disk.
        let marked = others_marked(&plain, &image).unwrap();
        assert_eq!((place(&marked), must_be_encrypted(&marked)), ("", false));
        assert_eq!(own_names(&marked).trim_end(), "h:1");
        for odd in ["a b", &"p".repeat(MAX_PLACE + 1)] {
            assert_eq!(describe(odd, false, "h:1"), "h:1");
        }
    }
}
