//! A chart as SVG, from a few shapes.

use std::fmt::Write as _;

use super::axis::Axis;

const WIDTH: f64 = 800.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const HEAD: f64 = 58.0;
/// Height of one panel: the plot, and the space above and below it.
const PANEL: f64 = 240.0;
const ABOVE: f64 = 40.0;
const BELOW: f64 = 44.0;

/// Distinguishable with any kind of colour vision (palette of Okabe and Ito).
pub(super) const COLOURS: [&str; 7] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#444444",
];

/// How points are drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Style {
    /// Joined by a line.
    Line,
    /// Single dots.
    Dots,
}

/// A series of points with a name.
#[derive(Clone, Debug)]
pub(crate) struct Points {
    pub name: String,
    pub style: Style,
    pub points: Vec<(f64, f64)>,
}

/// A plot with one pair of axes.
#[derive(Clone, Debug)]
pub(crate) struct Panel {
    pub title: String,
    pub x: Axis,
    pub y: Axis,
    pub points: Vec<Points>,
    /// Marks: a vertical line with a label.
    pub marks: Vec<(f64, &'static str)>,
}

/// A chart of panels, one below the other.
#[derive(Clone, Debug)]
pub(crate) struct Chart {
    pub title: String,
    /// The host and the date, in two lines.
    pub subtitle: [String; 2],
    pub panels: Vec<Panel>,
}

impl Chart {
    /// The chart as an SVG document.
    pub(crate) fn svg(&self) -> String {
        let each = ABOVE + PANEL + BELOW;
        #[allow(clippy::cast_precision_loss)] // a handful
        let height = HEAD + each * self.panels.len() as f64;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
             font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n"
        );
        text(
            &mut svg,
            (LEFT, 20.0),
            "start",
            "font-size=\"15\" font-weight=\"bold\"",
            &self.title,
        );
        for (line, y) in self.subtitle.iter().zip([36.0, 48.0]) {
            let grey = "font-size=\"10\" fill=\"#666666\"";
            text(&mut svg, (LEFT, y), "start", grey, line);
        }
        let mut top = HEAD;
        for panel in &self.panels {
            panel.draw(&mut svg, top + ABOVE);
            top += each;
        }
        svg.push_str("</svg>\n");
        svg
    }
}

impl Panel {
    fn draw(&self, svg: &mut String, top: f64) {
        let (right, bottom) = (WIDTH - RIGHT, top + PANEL);
        let x = |value: f64| LEFT + self.x.place(value) * (right - LEFT);
        let y = |value: f64| bottom - self.y.place(value) * PANEL;
        for (value, label) in self.x.ticks() {
            rule(svg, (x(value), top), (x(value), bottom), "#e0e0e0");
            text(svg, (x(value), bottom + 15.0), "middle", "", &label);
        }
        for (value, label) in self.y.ticks() {
            rule(svg, (LEFT, y(value)), (right, y(value)), "#e0e0e0");
            text(svg, (LEFT - 6.0, y(value) + 4.0), "end", "", &label);
        }
        // One below the other, because marks can be close together.
        let mut down = top + 11.0;
        for &(value, word) in &self.marks {
            rule(svg, (x(value), top), (x(value), bottom), "#888888");
            let grey = "font-size=\"10\" fill=\"#666666\"";
            text(svg, (x(value) + 3.0, down), "start", grey, word);
            down += 12.0;
        }
        for (points, colour) in self.points.iter().zip(COLOURS.iter().cycle()) {
            let places: Vec<_> = points.points.iter().map(|&(a, b)| (x(a), y(b))).collect();
            match points.style {
                Style::Line => line(svg, &places, colour),
                Style::Dots => dots(svg, &places, colour),
            }
        }
        let _ = writeln!(
            svg,
            "<rect x=\"{LEFT}\" y=\"{top}\" width=\"{}\" height=\"{PANEL}\" fill=\"none\" stroke=\"#444444\"/>",
            right - LEFT
        );
        text(svg, (right, bottom + 32.0), "end", "", self.x.label);
        text(svg, (LEFT - 60.0, top - 26.0), "start", "", self.y.label);
        text(
            svg,
            (LEFT + 160.0, top - 26.0),
            "start",
            "font-weight=\"bold\"",
            &self.title,
        );
        let mut at = LEFT;
        for (points, colour) in self.points.iter().zip(COLOURS.iter().cycle()) {
            let _ = writeln!(
                svg,
                "<rect x=\"{at:.1}\" y=\"{:.1}\" width=\"10\" height=\"10\" fill=\"{colour}\"/>",
                top - 17.0
            );
            text(
                svg,
                (at + 14.0, top - 8.0),
                "start",
                "font-size=\"11\"",
                &points.name,
            );
            // Approximate width of a letter at this size.
            #[allow(clippy::cast_precision_loss)]
            let width = points.name.chars().count() as f64 * 6.2;
            at += width + 30.0;
        }
    }
}

pub(super) fn rule(svg: &mut String, from: (f64, f64), to: (f64, f64), colour: &str) {
    let _ = writeln!(
        svg,
        "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{colour}\"/>",
        from.0, from.1, to.0, to.1
    );
}

fn line(svg: &mut String, places: &[(f64, f64)], colour: &str) {
    let points: Vec<_> = places
        .iter()
        .map(|(x, y)| format!("{x:.1},{y:.1}"))
        .collect();
    let _ = writeln!(
        svg,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"/>",
        points.join(" ")
    );
}

fn dots(svg: &mut String, places: &[(f64, f64)], colour: &str) {
    let mut path = String::new();
    for (x, y) in places {
        // A line of length zero with round ends is a dot: one path for thousands of dots.
        let _ = write!(path, "M{x:.1} {y:.1}h0");
    }
    let _ = writeln!(
        svg,
        "<path d=\"{path}\" stroke=\"{colour}\" stroke-width=\"3\" stroke-linecap=\"round\" stroke-opacity=\"0.6\"/>"
    );
}

pub(super) fn text(svg: &mut String, (x, y): (f64, f64), anchor: &str, more: &str, text: &str) {
    let text = text
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;");
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" {more}>{text}</text>"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::plot::axis::Scale;

    #[test]
    fn points_are_clamped_and_text_is_escaped() {
        let chart = Chart {
            title: "a < b & c".to_owned(),
            subtitle: ["here".to_owned(), "now".to_owned()],
            panels: vec![Panel {
                title: "panel".to_owned(),
                x: Axis::around("s", Scale::Linear, [0.0, 10.0].into_iter()),
                y: Axis::around("ms", Scale::Log, [1.0, 100.0].into_iter()),
                points: vec![
                    Points {
                        name: "one".to_owned(),
                        style: Style::Line,
                        points: vec![(0.0, 1.0), (10.0, 100.0)],
                    },
                    Points {
                        name: "two".to_owned(),
                        style: Style::Dots,
                        points: vec![(5.0, 10.0), (20.0, 0.0)],
                    },
                ],
                marks: vec![(5.0, "switch")],
            }],
        };
        let svg = chart.svg();
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        assert!(svg.contains("a &lt; b &amp; c") && svg.contains(">switch<"));
        assert!(svg.contains("points=\"70.0,338.0 780.0,98.0\""), "{svg}");
        // The second dot is outside the axes: it is drawn at the nearest corner.
        assert!(svg.contains("M425.0 218.0h0M780.0 338.0h0"), "{svg}");
        assert_eq!(svg.matches("<rect").count(), 4);
    }
}
