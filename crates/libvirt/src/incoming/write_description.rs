//! Writes a domain's description from the tree that was read of it.
//!
//! The text has one reading: UTF-8 without a declaration, no comments and processing instructions,
//! no sections of character data, no entities but the predefined ones. Prefixes stay, because
//! programs may look for theirs in `<metadata>`.

use std::collections::BTreeMap;
use std::io;

use quick_xml::Writer;
use quick_xml::events::{BytesEnd, BytesStart, BytesText, Event};
use roxmltree::{Document, NS_XML_URI, Node};

/// New values of attributes, by where the old ones begin in the text of the description.
pub(super) type Edits<'a> = BTreeMap<usize, &'a str>;

/// The text of the document, with these values of attributes instead of its own. The caller bounds
/// the depth of the document.
pub(super) fn write(document: &Document<'_>, edits: &Edits<'_>) -> io::Result<String> {
    let mut writer = Writer::new(Vec::new());
    element(&mut writer, document.root_element(), edits)?;
    String::from_utf8(writer.into_inner()).map_err(io::Error::other)
}

fn element(writer: &mut Writer<Vec<u8>>, node: Node<'_, '_>, edits: &Edits<'_>) -> io::Result<()> {
    let name = qualified(
        node,
        node.tag_name().namespace(),
        node.tag_name().name(),
        false,
    );
    let mut start = BytesStart::new(name.as_str());
    for declared in node.namespaces() {
        let mut above = node.parent().into_iter().flat_map(|node| node.namespaces());
        if above.any(|above| above == declared) {
            continue;
        }
        match declared.name() {
            Some(prefix) => {
                start.push_attribute((format!("xmlns:{prefix}").as_str(), declared.uri()));
            }
            None => start.push_attribute(("xmlns", declared.uri())),
        }
    }
    for attribute in node.attributes() {
        let name = qualified(node, attribute.namespace(), attribute.name(), true);
        let edited = edits.get(&attribute.range_value().start).copied();
        start.push_attribute((name.as_str(), edited.unwrap_or(attribute.value())));
    }
    if !node.has_children() {
        return writer.write_event(Event::Empty(start));
    }
    writer.write_event(Event::Start(start))?;
    for child in node.children() {
        if child.is_element() {
            element(writer, child, edits)?;
        } else if let Some(text) = child.text().filter(|_| child.is_text()) {
            writer.write_event(Event::Text(BytesText::new(text)))?;
        }
    }
    writer.write_event(Event::End(BytesEnd::new(name)))
}

/// The name with a prefix that stands for the namespace at `node`. The default namespace, which has
/// none, is not that of attributes.
fn qualified(
    node: Node<'_, '_>,
    namespace: Option<&str>,
    name: &str,
    is_attribute: bool,
) -> String {
    let prefix = match namespace {
        Some(NS_XML_URI) => Some("xml"),
        Some(uri) => {
            let mut declared = node.namespaces().filter(|declared| declared.uri() == uri);
            let found = declared.find(|declared| declared.name().is_some() || !is_attribute);
            found.and_then(|declared| declared.name())
        }
        None => None,
    };
    match prefix {
        Some(prefix) => format!("{prefix}:{name}"),
        None => name.to_owned(),
    }
}
