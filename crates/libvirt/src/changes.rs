//! What has changed in a domain's XML.
//!
//! libvirt writes an element a line, two blanks deeper for each level. The elements of `<devices>`
//! are compared one by one, and the other elements of `<domain>`.

/// Attributes and elements that change although the owner changes nothing: the guest has opened a
/// tray, set its clock, or returned memory by its balloon, or its agent has connected.
const BY_GUEST: [&str; 5] = [
    "<currentMemory ",
    " adjustment='",
    " state='",
    " tray='",
    "<clock ",
];

/// The first element that differs, for people.
pub(crate) fn first(before: &str, now: &str) -> Option<String> {
    let (before, now) = (elements(before), elements(now));
    let added = now.iter().find(|element| !before.contains(element));
    let removed = before.iter().find(|element| !now.contains(element));
    match (added, removed) {
        (None, None) => None,
        (Some(added), Some(removed)) if name(added) == name(removed) => {
            Some(format!("{} was changed", name(added)))
        }
        (_, Some(removed)) => Some(format!("{} was removed", name(removed))),
        (Some(added), None) => Some(format!("{} was added", name(added))),
    }
}

/// That there is no image below another one.
const NO_BACKING: &str = "<backingStore/>";

/// The elements, without what the guest changes, and without what libvirt adds itself after its
/// daemon was restarted: more security labels, and that images have none below (12.9).
fn elements(xml: &str) -> Vec<String> {
    let mut elements: Vec<String> = Vec::new();
    let mut depth = 2;
    for line in xml.lines() {
        if let "  <devices>" | "  </devices>" = line {
            depth = if line.contains('/') { 2 } else { 4 };
            continue;
        }
        let indent = line.len() - line.trim_start().len();
        if indent < depth {
            continue;
        }
        let line = line.trim();
        if line == NO_BACKING {
            continue;
        }
        if indent == depth && !line.starts_with("</") {
            elements.push(String::new());
        }
        if let Some(element) = elements.last_mut() {
            // The state of a link is the owner's.
            let by_guest = BY_GUEST.iter().filter(|_| !line.starts_with("<link "));
            let changes = by_guest.filter_map(|by_guest| line.find(by_guest)).min();
            let kept = line.get(..changes.unwrap_or(line.len())).unwrap_or(line);
            element.push_str(kept.trim_end_matches("/>"));
            element.push('\n');
        }
    }
    elements.retain(|element| !element.starts_with("<seclabel type='dynamic'"));
    elements
}

/// What an element is called: `<disk> (<target dev='vda' bus='virtio'/>)`.
fn name(element: &str) -> String {
    let mut lines = element.lines();
    let first = lines.next().unwrap_or_default();
    let tag = first.trim_start_matches('<').split([' ', '>', '/']).next();
    let tag = tag.unwrap_or_default();
    let known_by = |line: &&str| {
        ["<target ", "<mac ", "<address "]
            .iter()
            .any(|by| line.starts_with(by))
    };
    match lines.find(known_by) {
        Some(line) => format!("<{tag}> ({line}/>)"),
        None => format!("<{tag}>"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const XML: &str = "\
<domain type='qemu'>
  <name>guest</name>
  <currentMemory unit='KiB'>65536</currentMemory>
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
    <disk type='file' device='disk'>
      <source file='/disk'/>
      <target dev='vda' bus='virtio'/>
    </disk>
    <disk type='file' device='cdrom'>
      <target dev='sda' bus='sata' tray='open'/>
    </disk>
    <channel type='unix'>
      <target type='virtio' name='org.qemu.guest_agent.0' state='connected'/>
    </channel>
  </devices>
</domain>
";

    #[test]
    fn the_first_difference_is_named() {
        let added = "    <disk type='file' device='disk'>\n      <target dev='vdb' bus='virtio'/>\n    </disk>\n  </devices>";
        for (from, to, expected) in [
            ("", "", None),
            (
                "  </devices>",
                added,
                Some("<disk> (<target dev='vdb' bus='virtio'/>) was added"),
            ),
            (
                "/disk",
                "/other",
                Some("<disk> (<target dev='vda' bus='virtio'/>) was changed"),
            ),
            (
                "    <emulator>/usr/bin/qemu-system-x86_64</emulator>\n",
                "",
                Some("<emulator> was removed"),
            ),
            ("<name>guest", "<name>guest2", Some("<name> was changed")),
            // libvirt does this itself, when its daemon is restarted.
            (
                "</domain>",
                "  <seclabel type='dynamic' model='dac' relabel='yes'/>\n</domain>",
                None,
            ),
            (
                "      <target dev='vda'",
                "      <backingStore/>\n      <target dev='vda'",
                None,
            ),
            // The guest does these itself.
            ("65536", "32768", None),
            (" tray='open'", "", None),
            ("'connected'", "'disconnected'", None),
        ] {
            let now = if from.is_empty() {
                XML.to_owned()
            } else {
                XML.replace(from, to)
            };
            assert_eq!(first(XML, &now).as_deref(), expected, "{from} {to}");
        }
        let back = XML.replace("  </devices>", added);
        let removed = first(&back, XML).unwrap();
        assert!(
            removed.contains("vdb") && removed.ends_with("removed"),
            "{removed}"
        );
    }

    #[test]
    fn anything_can_be_compared() {
        for text in ["", "\n", "  ", "<", "  <a\n    b", "é"] {
            assert_eq!(first(text, text), None);
            let _ = first(text, XML);
        }
    }
}
