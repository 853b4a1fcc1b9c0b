//! A document in Markdown, as far as it is checked.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

/// What is checked of one document.
#[derive(Debug)]
pub(crate) struct Document {
    /// Its path, relative to the top of the tree.
    pub(crate) file: PathBuf,
    /// Its lines, and whether each belongs to a table.
    pub(crate) lines: Vec<(String, bool)>,
    /// The anchors of its headings, as GitHub makes them.
    pub(crate) anchors: Vec<String>,
    /// The target of each link, and the line that it is on (from 1).
    pub(crate) links: Vec<(String, usize)>,
    /// What stands in backticks, and the line that it is on (from 1).
    pub(crate) code: Vec<(String, usize)>,
}

impl Document {
    /// Parses `text`, the content of `file`.
    pub(crate) fn parse(file: &Path, text: &str) -> Self {
        let mut document = Self {
            file: file.to_path_buf(),
            lines: text.lines().map(|line| (line.to_owned(), false)).collect(),
            anchors: Vec::new(),
            links: Vec::new(),
            code: Vec::new(),
        };
        let starts: Vec<usize> = std::iter::once(0)
            .chain(text.match_indices('\n').map(|(at, _)| at + 1))
            .collect();
        let line_of = |at: usize| starts.partition_point(|start| *start <= at);
        let mut heading: Option<String> = None;
        let mut seen = HashMap::new();
        let parser = Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter();
        for (event, place) in parser {
            let line = line_of(place.start);
            match event {
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => {
                    let title = heading.take().unwrap_or_default();
                    document.anchors.push(anchor(&title, &mut seen));
                }
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    document.links.push((dest_url.into_string(), line));
                }
                Event::Start(Tag::Table(_)) => {
                    for (_, in_table) in &mut document.lines[line - 1..line_of(place.end - 1)] {
                        *in_table = true;
                    }
                }
                Event::Code(code) => {
                    if let Some(title) = &mut heading {
                        title.push_str(&code);
                    }
                    document.code.push((code.into_string(), line));
                }
                Event::Text(text) => {
                    if let Some(title) = &mut heading {
                        title.push_str(&text);
                    }
                }
                _ => {}
            }
        }
        document
    }
}

/// The anchor that GitHub gives to a heading: lower case, blanks become hyphens, other punctuation
/// goes; one that was there before gets a number. `seen` counts each anchor.
fn anchor(title: &str, seen: &mut HashMap<String, usize>) -> String {
    let plain: String = title
        .trim()
        .to_lowercase()
        .chars()
        .filter_map(|c| match c {
            ' ' => Some('-'),
            '-' | '_' => Some(c),
            _ => c.is_alphanumeric().then_some(c),
        })
        .collect();
    let count = seen.entry(plain.clone()).or_insert(0);
    *count += 1;
    match *count {
        1 => plain,
        more => format!("{plain}-{}", more - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Document {
        Document::parse(Path::new("a.md"), text)
    }

    #[test]
    fn headings_become_anchors_as_on_github() {
        let text = "# What is `refused`, and why?\n\n## Twice\n## Twice\nUnder\n=====\n";
        assert_eq!(
            parse(text).anchors,
            ["what-is-refused-and-why", "twice", "twice-1", "under"]
        );
    }

    #[test]
    fn links_and_code_have_their_lines_and_code_blocks_have_none() {
        let text =
            "one [a](b.md)\ntwo `c.rs`\n\n```\n[no](no.md) `no.rs`\n```\n\n[r]: d.md\n[r] e\n";
        let document = parse(text);
        assert_eq!(
            document.links,
            [("b.md".to_owned(), 1), ("d.md".to_owned(), 9)]
        );
        assert_eq!(document.code, [("c.rs".to_owned(), 2)]);
    }

    #[test]
    fn the_lines_of_a_table_are_known() {
        let text = "before\n\n| a | b |\n| --- | --- |\n| c | d |\n\nafter\n";
        let tables: Vec<bool> = parse(text)
            .lines
            .iter()
            .map(|(_, in_table)| *in_table)
            .collect();
        assert_eq!(tables, [false, false, true, true, true, false, false]);
    }
}
