//! Pictures as SVG, drawn by plotters.

use std::error::Error;

use plotters::coord::Shift;
use plotters::prelude::*;

/// A picture, or a part of one.
pub(crate) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Draws an SVG document of this size, on white.
pub(crate) fn picture(
    size: (u32, u32),
    draw: impl FnOnce(&Area<'_>) -> Result<(), Box<dyn Error>>,
) -> Result<String, Box<dyn Error>> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        area.fill(&WHITE)?;
        draw(&area)?;
        area.present()?;
    }
    Ok(svg)
}

/// Writes text whose upper left corner is `at`.
pub(crate) fn text(
    area: &Area<'_>,
    text: &str,
    at: (i32, i32),
    size: u32,
    colour: &RGBColor,
) -> Result<(), Box<dyn Error>> {
    let style = (FontFamily::SansSerif, size).into_font().color(colour);
    area.draw(&Text::new(text, at, style))?;
    Ok(())
}
