//! A chart as SVG, drawn by plotters.

use std::collections::HashSet;

use plotters::coord::Shift;
use plotters::prelude::*;

use super::axis::Axis;
use super::dots;
use crate::error::DrawError;

/// A part of an SVG picture.
pub(super) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

const WIDTH: u32 = 800;
const LEFT: i32 = 70;
const RIGHT: i32 = 20;
/// Height of the title, of a panel, and of a panel's own title and legend.
const HEAD: u32 = 58;
const PANEL: u32 = 330;
const ABOVE: i32 = 40;

/// Distinguishable with any kind of colour vision (palette of Okabe and Ito).
pub(super) const COLOURS: [RGBColor; 7] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0x44, 0x44, 0x44),
];

/// Grid lines, marks and secondary text.
pub(super) const LIGHT: RGBColor = RGBColor(0xe0, 0xe0, 0xe0);
const MARK: RGBColor = RGBColor(0x88, 0x88, 0x88);
pub(super) const GREY: RGBColor = RGBColor(0x66, 0x66, 0x66);

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
    ///
    /// # Errors
    /// When the library cannot draw.
    pub(crate) fn svg(&self) -> Result<String, DrawError> {
        #[allow(clippy::cast_possible_truncation)] // a handful
        let height = HEAD + PANEL * self.panels.len() as u32;
        let svg = picture((WIDTH, height), |root| {
            heading(root, LEFT, &self.title, &self.subtitle)?;
            let (_, below) = root.split_vertically(HEAD);
            let areas = below.split_evenly((self.panels.len(), 1));
            for (panel, area) in self.panels.iter().zip(areas) {
                panel.draw(&area)?;
            }
            Ok(())
        })?;
        Ok(dots::join(&svg))
    }
}

impl Panel {
    fn draw(&self, area: &Area<'_>) -> Result<(), DrawError> {
        let (above, plot) = area.split_vertically(ABOVE);
        self.legend(&above)?;
        let mut chart = ChartBuilder::on(&plot)
            .margin_left(10)
            .margin_right(RIGHT)
            .x_label_area_size(44)
            .y_label_area_size(LEFT - 10)
            .build_cartesian_2d(self.x.clone(), self.y.clone())?;
        chart
            .configure_mesh()
            .x_labels(10)
            .y_labels(8)
            .x_desc(self.x.label)
            .y_desc(self.y.label)
            .bold_line_style(LIGHT)
            .light_line_style(TRANSPARENT)
            .draw()?;
        for (mark, down) in self.marks.iter().zip((2..).step_by(12)) {
            let ends = [(mark.0, self.y.min), (mark.0, self.y.max)];
            chart.draw_series([PathElement::new(ends, MARK)])?;
            // One below the other, because marks can be close together.
            let label = Text::new(mark.1, (3, down), font(10, GREY));
            let at = EmptyElement::at((mark.0, self.y.max));
            chart.draw_series([at + label])?;
        }
        for (points, colour) in self.points.iter().zip(COLOURS.iter().cycle()) {
            match points.style {
                Style::Line => {
                    let line = points.points.iter().copied();
                    chart.draw_series(LineSeries::new(line, colour.stroke_width(2)))?;
                }
                Style::Dots => {
                    // One dot for each place: thousands of points can be in the same few.
                    let mut drawn = HashSet::new();
                    let mut dots = points.points.clone();
                    dots.retain(|dot| drawn.insert(chart.plotting_area().map_coordinate(dot)));
                    let dot = |at| Circle::new(at, 2, colour.mix(0.6).filled());
                    chart.draw_series(dots.into_iter().map(dot))?;
                }
            }
        }
        Ok(())
    }

    /// The panel's title, and below it the names of the series.
    fn legend(&self, area: &Area<'_>) -> Result<(), DrawError> {
        let title = font(12, BLACK).transform(FontTransform::None);
        area.draw(&Text::new(self.title.as_str(), (LEFT, 4), title))?;
        let style = font(11, BLACK);
        let mut at = LEFT;
        for (points, colour) in self.points.iter().zip(COLOURS.iter().cycle()) {
            let key = [(at, 22), (at + 10, 32)];
            area.draw(&Rectangle::new(key, colour.filled()))?;
            area.draw(&Text::new(points.name.as_str(), (at + 14, 22), &style))?;
            let (width, _) = area.estimate_text_size(&points.name, &style)?;
            at += i32::try_from(width).unwrap_or(0) + 34;
        }
        Ok(())
    }
}

/// Draws an SVG document of this size, on white.
pub(super) fn picture(
    size: (u32, u32),
    draw: impl FnOnce(&Area<'_>) -> Result<(), DrawError>,
) -> Result<String, DrawError> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        root.fill(&WHITE)?;
        draw(&root)?;
        root.present()?;
    }
    Ok(svg)
}

/// The title of a picture, and two lines below it.
pub(super) fn heading(
    area: &Area<'_>,
    left: i32,
    title: &str,
    subtitle: &[String; 2],
) -> Result<(), DrawError> {
    let bold = FontDesc::new(FontFamily::SansSerif, 15.0, FontStyle::Bold);
    area.draw(&Text::new(title, (left, 6), bold))?;
    for (line, y) in subtitle.iter().zip([28, 40]) {
        area.draw(&Text::new(line.as_str(), (left, y), font(10, GREY)))?;
    }
    Ok(())
}

/// Text of this size and colour.
pub(super) fn font(size: u32, colour: RGBColor) -> TextStyle<'static> {
    (FontFamily::SansSerif, size).into_font().color(&colour)
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
                        points: vec![(5.0, 10.0), (5.0, 10.0), (20.0, 0.0)],
                    },
                ],
                marks: vec![(5.0, "switch")],
            }],
        };
        let svg = chart.svg().unwrap();
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        for text in [
            "a &lt; b &amp; c",
            "switch",
            "panel",
            "one",
            "two",
            "here",
            "now",
        ] {
            assert!(svg.contains(text), "{text}: {svg}");
        }
        let line = COLOURS[0];
        let line = format!("#{:02X}{:02X}{:02X}", line.0, line.1, line.2);
        assert!(svg.contains(&format!("stroke=\"{line}\"")), "{svg}");
        // Two points are in the same place. One is outside of the axes: it is in the corner.
        assert_eq!(svg.matches("h0").count(), 2, "{svg}");
        assert!(svg.contains("M779 343h0"), "{svg}");
    }
}
