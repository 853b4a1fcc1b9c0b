//! HTML as text. Everything that is inserted is escaped.

use std::fmt::Write;

/// Text as the content of an element, or the value of an attribute in quotes.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            // HTML has no reference for these, and no use for them.
            '\0'..='\u{8}' | '\u{b}'..='\u{1f}' | '\u{7f}' => escaped.push('\u{fffd}'),
            other => escaped.push(other),
        }
    }
    escaped
}

/// JSON for a `<script>` element: no `<` can end the element or begin a comment.
pub(super) fn escape_json(json: &str) -> String {
    json.replace('<', "\\u003c")
        .replace('>', "\\u003e")
        .replace('&', "\\u0026")
}

/// A table under construction. The first cell of a row is its heading.
#[derive(Debug)]
pub(super) struct Table {
    html: String,
    /// Which columns have numbers.
    numbers: Vec<bool>,
}

/// A column of a table.
#[derive(Debug, Clone)]
pub(super) struct Column {
    name: String,
    number: bool,
}

/// A column of text.
pub(super) fn text(name: &str) -> Column {
    Column {
        name: name.to_owned(),
        number: false,
    }
}

/// A column of numbers.
pub(super) fn number(name: &str) -> Column {
    Column {
        name: name.to_owned(),
        number: true,
    }
}

impl Table {
    pub(super) fn new(caption: &str, columns: &[Column]) -> Self {
        let mut html = format!(
            "<div class=\"table\"><table><caption>{}</caption><thead><tr>",
            escape(caption)
        );
        for column in columns {
            let class = class(column.number);
            let _ = write!(
                html,
                "<th scope=\"col\"{class}>{}</th>",
                escape(&column.name)
            );
        }
        html.push_str("</tr></thead><tbody>");
        Self {
            html,
            numbers: columns.iter().map(|column| column.number).collect(),
        }
    }

    /// Adds a row.
    pub(super) fn row<T: AsRef<str>>(&mut self, cells: &[T]) {
        self.html.push_str("<tr>");
        for (index, cell) in cells.iter().enumerate() {
            let class = class(self.numbers.get(index).copied().unwrap_or(false));
            let text = escape(cell.as_ref());
            let _ = match index {
                0 => write!(self.html, "<th scope=\"row\"{class}>{text}</th>"),
                _ => write!(self.html, "<td{class}>{text}</td>"),
            };
        }
        self.html.push_str("</tr>");
    }

    pub(super) fn finish(mut self) -> String {
        self.html.push_str("</tbody></table></div>\n");
        self.html
    }
}

fn class(number: bool) -> &'static str {
    match number {
        true => " class=\"number\"",
        false => "",
    }
}

/// A part of the page with a heading. `content` is HTML.
pub(super) fn panel(title: &str, content: &str) -> String {
    format!(
        "<section class=\"panel\"><h3>{}</h3>{content}</section>\n",
        escape(title)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped() {
        assert_eq!(
            escape("<b onclick='x' title=\"y\">&\0\n"),
            "&lt;b onclick=&#39;x&#39; title=&quot;y&quot;&gt;&amp;\u{fffd}\n"
        );
    }

    #[test]
    fn json_cannot_end_its_element() {
        let value = serde_json::json!({ "guest": "</script><!--<script>&" });
        let escaped = escape_json(&value.to_string());
        assert!(!escaped.contains(['<', '>', '&']), "{escaped}");
        let read: serde_json::Value = serde_json::from_str(&escaped).expect("JSON");
        assert_eq!(read, value);
    }

    #[test]
    fn a_table_has_headings_for_rows_and_columns() {
        let mut table = Table::new("Rounds", &[text("round"), number("pages")]);
        table.row(&["1", "<2>"]);
        assert_eq!(
            table.finish(),
            "<div class=\"table\"><table><caption>Rounds</caption><thead><tr>\
             <th scope=\"col\">round</th><th scope=\"col\" class=\"number\">pages</th></tr></thead>\
             <tbody><tr><th scope=\"row\">1</th><td class=\"number\">&lt;2&gt;</td></tr></tbody>\
             </table></div>\n"
        );
    }
}
