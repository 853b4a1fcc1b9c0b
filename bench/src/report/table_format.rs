//! A table as text for a terminal, or as Markdown.

use std::fmt::Write as _;

/// A table.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    /// The heading.
    pub title: String,
    /// The columns. The first is left-aligned; the others are numbers and right-aligned.
    pub head: Vec<&'static str>,
    /// Whether all columns hold words and are left-aligned.
    pub words: bool,
    /// The rows.
    pub lines: Vec<Vec<String>>,
}

impl Table {
    /// The table as text, with columns of equal width.
    pub(crate) fn text(&self) -> String {
        let head = self.head.iter().map(|&cell| cell.to_owned()).collect();
        let lines: Vec<&Vec<String>> = std::iter::once(&head).chain(&self.lines).collect();
        let width = |column: usize| {
            let cells = lines.iter().filter_map(|line| line.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let mut text = format!("{}\n", self.title);
        for line in &lines {
            let mut shown = String::new();
            for (column, cell) in line.iter().enumerate() {
                let width = width(column);
                let _ = match column {
                    _ if self.words || column == 0 => write!(shown, "  {cell:<width$}"),
                    _ => write!(shown, "  {cell:>width$}"),
                };
            }
            text.push_str(shown.trim_end());
            text.push('\n');
        }
        text
    }

    /// The table as Markdown.
    pub(crate) fn markdown(&self) -> String {
        let row = |cells: &mut dyn Iterator<Item = &str>| {
            let cells: Vec<_> = cells.map(str::trim).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let mut text = format!("**{}**\n\n", self.title);
        text.push_str(&row(&mut self.head.iter().copied()));
        let rules = self.head.iter().enumerate();
        text.push_str(&row(&mut rules.map(|(column, _)| match column {
            _ if self.words || column == 0 => "---",
            _ => "---:",
        })));
        for line in &self.lines {
            text.push_str(&row(&mut line.iter().map(String::as_str)));
        }
        text
    }
}

/// A number with this many decimals, or a dash.
pub(super) fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.digits$}"))
}

/// The ratio of two numbers, or a dash.
pub(super) fn ratio(ours: Option<f64>, theirs: Option<f64>) -> String {
    match (ours, theirs) {
        (Some(ours), Some(theirs)) if theirs > 0.0 => format!("{:.2}x", ours / theirs),
        _ => "-".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_text_or_markdown() {
        let table = Table {
            title: "sizes".to_owned(),
            head: vec!["who", "ms"],
            words: false,
            lines: vec![
                vec!["a".to_owned(), number(Some(12.34), 1)],
                vec!["  b / a".to_owned(), ratio(Some(3.0), Some(2.0))],
            ],
        };
        assert_eq!(
            table.text(),
            "sizes\n  who         ms\n  a         12.3\n    b / a  1.50x\n"
        );
        assert_eq!(
            table.markdown(),
            "**sizes**\n\n| who | ms |\n| --- | ---: |\n| a | 12.3 |\n| b / a | 1.50x |\n"
        );
        assert_eq!(
            (number(None, 1), ratio(Some(1.0), Some(0.0))),
            ("-".into(), "-".into())
        );
    }
}
