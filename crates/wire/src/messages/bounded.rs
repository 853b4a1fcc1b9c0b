//! Texts, bytes and lists with an upper bound, checked by sender and receiver.
//!
//! serde's own `Vec` allocates memory for the announced number of elements (up
//! to a megabyte). These types start empty, grow with the elements that arrive,
//! and refuse what is longer than the bound.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{self, Deserialize, Deserializer, SeqAccess, Visitor};
use serde::ser::{self, Serialize, Serializer};

use crate::text;

/// The longest text in a message, in bytes: a name, a version, a reason.
pub const MAX_TEXT: usize = 4096;

/// A name. A longer one is an error on both sides. One with control characters
/// is refused: no machine type or RAM block has such a name.
pub(crate) struct Name;

impl Name {
    pub(crate) fn serialize<S: Serializer>(name: &str, serializer: S) -> Result<S::Ok, S::Error> {
        if name.len() > MAX_TEXT {
            return Err(ser::Error::custom("name too long"));
        }
        serializer.serialize_str(name)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<String, D::Error> {
        let name = deserializer.deserialize_str(TextVisitor)?;
        if !name.chars().all(text::is_text) {
            return Err(de::Error::custom("a name with control characters"));
        }
        Ok(name)
    }
}

/// A [`Name`] without spare capacity, for values of which there are many.
pub(crate) struct Label;

impl Label {
    pub(crate) fn serialize<S: Serializer>(name: &str, serializer: S) -> Result<S::Ok, S::Error> {
        Name::serialize(name, serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Box<str>, D::Error> {
        Name::deserialize(deserializer).map(String::into_boxed_str)
    }
}

/// A text for people. A longer one is cut when it is sent: a long reason must
/// not cause another failure. A received one is reduced to printable characters
/// ([`text::one_line`]), because it is displayed unchanged.
pub(crate) struct Reason;

impl Reason {
    pub(crate) fn serialize<S: Serializer>(text: &str, serializer: S) -> Result<S::Ok, S::Error> {
        let mut end = text.len().min(MAX_TEXT);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        serializer.serialize_str(&text[..end])
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<String, D::Error> {
        let text = deserializer.deserialize_str(TextVisitor)?;
        Ok(text::one_line(&text).into_owned())
    }
}

struct TextVisitor;

impl Visitor<'_> for TextVisitor {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a text of at most {MAX_TEXT} bytes")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<String, E> {
        if text.len() > MAX_TEXT {
            return Err(E::invalid_length(text.len(), &self));
        }
        Ok(text.to_owned())
    }
}

/// At most `MAX` bytes.
pub(crate) struct Bytes<const MAX: usize>;

impl<const MAX: usize> Bytes<MAX> {
    pub(crate) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        if bytes.len() > MAX {
            return Err(ser::Error::custom("too many bytes"));
        }
        serializer.serialize_bytes(bytes)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<u8>, D::Error> {
        deserializer.deserialize_bytes(BytesVisitor::<MAX>)
    }
}

struct BytesVisitor<const MAX: usize>;

impl<const MAX: usize> Visitor<'_> for BytesVisitor<MAX> {
    type Value = Vec<u8>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at most {MAX} bytes")
    }

    fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
        if bytes.len() > MAX {
            return Err(E::invalid_length(bytes.len(), &self));
        }
        Ok(bytes.to_vec())
    }
}

/// At most `MAX` elements.
pub(crate) struct List<const MAX: usize>;

impl<const MAX: usize> List<MAX> {
    pub(crate) fn serialize<T: Serialize, S: Serializer>(
        list: &[T],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        if list.len() > MAX {
            return Err(ser::Error::custom("list too long"));
        }
        serializer.collect_seq(list)
    }

    pub(crate) fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<T>, D::Error> {
        deserializer.deserialize_seq(ListVisitor::<T, MAX>(PhantomData))
    }
}

struct ListVisitor<T, const MAX: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for ListVisitor<T, MAX> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at most {MAX} elements")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Vec<T>, A::Error> {
        // No memory is allocated for the announced length: it may be wrong.
        let mut list = Vec::new();
        while let Some(element) = elements.next_element()? {
            if list.len() == MAX {
                return Err(de::Error::invalid_length(MAX + 1, &self));
            }
            list.push(element);
        }
        Ok(list)
    }
}
