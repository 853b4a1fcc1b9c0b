//! Dots in fewer bytes: a plot can have thousands, and plots are kept with the documents.

use std::fmt::Write as _;

/// Joins circles of an SVG document that follow each other and look the same to one path, in which
/// each is a line without length and with round ends.
pub(super) fn join(svg: &str) -> String {
    let mut joined = String::with_capacity(svg.len());
    let mut lines = svg.lines().peekable();
    while let Some(line) = lines.next() {
        let Some((first, look)) = circle(line) else {
            joined.push_str(line);
            joined.push('\n');
            continue;
        };
        let mut path = first;
        while let Some((place, _)) = lines
            .peek()
            .and_then(|line| circle(line))
            .filter(|(_, other)| *other == look)
        {
            path.push_str(&place);
            lines.next();
        }
        let [radius, opacity, colour] = look;
        let width = 2 * radius.parse::<u32>().unwrap_or(1);
        // Writing to a string does not fail.
        let _ = writeln!(
            joined,
            r#"<path d="{path}" fill="none" stroke="{colour}" stroke-opacity="{opacity}" stroke-width="{width}" stroke-linecap="round"/>"#
        );
    }
    joined
}

/// The place of a filled circle, as a part of a path, and its radius, opacity and colour.
fn circle(line: &str) -> Option<(String, [&str; 3])> {
    let parts: Vec<&str> = line.split('"').collect();
    match parts[..] {
        [
            "<circle cx=",
            x,
            " cy=",
            y,
            " r=",
            radius,
            " opacity=",
            opacity,
            " fill=",
            colour,
            " stroke=",
            "none",
            ..,
        ] => Some((format!("M{x} {y}h0"), [radius, opacity, colour])),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn circles_that_look_the_same_are_one_path() {
        let dot = |x: u32, colour: &str| {
            format!(
                r#"<circle cx="{x}" cy="7" r="2" opacity="0.6" fill="{colour}" stroke="none" stroke-width="1"/>"#
            )
        };
        let svg = [
            "<svg>",
            &dot(1, "#111"),
            &dot(2, "#111"),
            &dot(3, "#222"),
            "</svg>",
            "",
        ];
        let path = |places: &str, colour: &str| {
            format!(
                r#"<path d="{places}" fill="none" stroke="{colour}" stroke-opacity="0.6" stroke-width="4" stroke-linecap="round"/>"#
            )
        };
        let expected = [
            "<svg>",
            &path("M1 7h0M2 7h0", "#111"),
            &path("M3 7h0", "#222"),
            "</svg>",
            "",
        ];
        assert_eq!(join(&svg.join("\n")), expected.join("\n"));
    }
}
