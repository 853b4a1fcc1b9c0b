//! Bars that compare migrations, drawn by plotters.
//!
//! The page's style sheet gives the colors and the font, because a report is read on a light and on
//! a dark background: a rule of CSS comes before an attribute of SVG.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::format::NONE;
use super::markup::escape;

/// Sizes in units of the picture's own: it is as wide as there is room.
const WIDTH: u32 = 600;
const NAMES: i32 = 190;
const VALUES: i32 = 90;
const ROW: i32 = 20;
const FONT: u32 = 14;

type DrawError = DrawingAreaErrorKind<std::io::Error>;

/// A figure with one bar for each name. A value that is not known has no bar.
///
/// # Errors
/// When the library cannot draw.
pub(super) fn figure(
    title: &str,
    names: &[String],
    values: &[Option<f64>],
    shown: &dyn Fn(f64) -> String,
) -> Result<String, DrawError> {
    let title = escape(title);
    let svg = picture(names, values, shown)?.replacen(
        "<svg ",
        &format!("<svg role=\"img\" aria-label=\"{title}: the numbers are in the table\" "),
        1,
    );
    Ok(format!(
        "<figure><figcaption>{title}</figcaption>{svg}</figure>"
    ))
}

#[allow(clippy::cast_possible_truncation)] // Within the picture.
fn picture(
    names: &[String],
    values: &[Option<f64>],
    shown: &dyn Fn(f64) -> String,
) -> Result<String, DrawError> {
    let most = values.iter().flatten().copied().fold(0.0, f64::max);
    let room = f64::from(WIDTH.cast_signed() - NAMES - VALUES);
    let text = |place| {
        let font = (FontFamily::SansSerif, FONT).into_font();
        font.color(&BLACK).pos(Pos::new(place, VPos::Center))
    };
    let height = ROW.unsigned_abs() * u32::try_from(names.len()).unwrap_or(u32::MAX / 64);
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        for ((name, value), top) in names.iter().zip(values).zip((0..).step_by(ROW as usize)) {
            let middle = top + ROW / 2;
            let end = match value {
                Some(value) if most > 0.0 => NAMES + (value / most * room).round() as i32,
                _ => NAMES,
            };
            let value = value.map_or(NONE.to_owned(), shown);
            area.draw(&Text::new(
                short(name),
                (NAMES - 8, middle),
                text(HPos::Right),
            ))?;
            area.draw(&Rectangle::new(
                [(NAMES, top + 4), (end, top + 16)],
                BLACK.filled(),
            ))?;
            area.draw(&Text::new(value, (end + 5, middle), text(HPos::Left)))?;
        }
        area.present()?;
    }
    Ok(svg)
}

/// A name that fits beside the bars.
fn short(name: &str) -> String {
    match name.char_indices().nth(27) {
        Some((end, _)) => format!("{}…", name.get(..end).unwrap_or_default()),
        None => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_value_has_the_longest_bar_and_an_unknown_one_none() {
        let names = ["a < b", "2. web, hybrid", "3. web"].map(str::to_owned);
        let values = [Some(50.0), Some(100.0), None];
        let html = figure("Time & data", &names, &values, &|value| {
            format!("{value} ms")
        })
        .unwrap();
        for part in [
            "a &lt; b",
            "2. web, hybrid",
            "100 ms",
            NONE,
            "Time &amp; data",
        ] {
            assert!(html.contains(part), "{part}: {html}");
        }
        for width in [160, 320, 0] {
            assert!(
                html.contains(&format!("width=\"{width}\" height=\"12\"")),
                "{html}"
            );
        }
        // The policy of the page forbids styles in attributes.
        assert!(!html.contains("style="), "{html}");
        assert!(
            html.starts_with("<figure>") && !html.contains("<?xml"),
            "{html}"
        );
    }
}
