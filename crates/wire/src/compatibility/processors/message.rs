//! The message that names the differences between two hosts' processors.
//!
//! A message to a person is bounded: names and values come from a peer.

use std::collections::BTreeSet;
use std::fmt;

use super::{ChangedValue, KindDifferences, ProcessorDifferences};

/// Most names in one list.
const MAX_NAMES: usize = 48;

/// Most groups of processors that a message describes.
const MAX_GROUPS: usize = 4;

/// Most changed values that a message gives.
const MAX_VALUES: usize = 16;

impl fmt::Display for ProcessorDifferences {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts: Vec<_> = self.machine.iter().map(ToString::to_string).collect();
        let mut values = MAX_VALUES.saturating_sub(parts.len());
        for (indices, differences) in self.groups.iter().take(MAX_GROUPS) {
            let which = if indices.len() == self.processors {
                "processors".to_owned()
            } else {
                format!("processors with the index {}", list(spans(indices)))
            };
            differences.describe(&which, &mut values, &mut parts);
        }
        let rest = self.groups.iter().skip(MAX_GROUPS);
        let more: BTreeSet<u32> = rest.flat_map(|(indices, _)| indices).copied().collect();
        if !more.is_empty() {
            parts.push(format!("and {} more processors differ", more.len()));
        }
        f.write_str(&parts.join("; "))
    }
}

impl fmt::Display for ChangedValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the {} is {} at the source but {} at the destination",
            self.what, self.source, self.destination
        )
    }
}

impl KindDifferences {
    /// Appends the parts of a message about `which` processors. Gives at most
    /// `values` changed values and subtracts those it gives.
    fn describe(&self, which: &str, values: &mut usize, parts: &mut Vec<String>) {
        if !self.missing.is_empty() {
            let mut text = format!("the destination's {which} lack {}", list(&self.missing));
            if !self.unavailable.is_empty() {
                let names = list(&self.unavailable);
                text += &format!(" (its host or accelerator cannot provide {names})");
            }
            parts.push(text);
        }
        if !self.added.is_empty() {
            parts.push(format!(
                "the destination's {which} have {} in addition",
                list(&self.added)
            ));
        }
        let of = if which == "processors" {
            String::new()
        } else {
            format!(" ({which})")
        };
        let shown = self.changed.len().min(*values);
        *values -= shown;
        let all = self.changed.iter().take(shown);
        parts.extend(all.map(|changed| format!("{changed}{of}")));
        match self.changed.len() - shown {
            0 => {}
            1 => parts.push(format!("and 1 more value{of}")),
            more => parts.push(format!("and {more} more values{of}")),
        }
    }
}

/// Sorted numbers with runs joined: `0`, `2 to 7`.
fn spans(numbers: &[u32]) -> Vec<String> {
    let adjacent = |one: &u32, next: &u32| one.checked_add(1) == Some(*next);
    let spans = numbers.chunk_by(adjacent).filter_map(|span| match span {
        [] => None,
        [one] => Some(one.to_string()),
        [first, .., last] => Some(format!("{first} to {last}")),
    });
    spans.collect()
}

/// Names for a message: the first [`MAX_NAMES`], and the number of the others.
pub(super) fn list<T: AsRef<str>>(names: impl IntoIterator<Item = T>) -> String {
    let names: Vec<T> = names.into_iter().collect();
    let shown: Vec<&str> = names.iter().take(MAX_NAMES).map(AsRef::as_ref).collect();
    match names.len().saturating_sub(MAX_NAMES) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}
