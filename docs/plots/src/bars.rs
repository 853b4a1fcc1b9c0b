//! Horizontal bar charts.

use std::fmt::{Error, Write};

use super::COLOURS;

/// Groups of bars: the name of each group, and the name and value of each of its bars.
pub(crate) type Bars = Vec<(String, Vec<(String, f64)>)>;

const WIDTH: f64 = 720.0;
const LEFT: f64 = 230.0;
const RIGHT: f64 = 90.0;
const ROW: f64 = 18.0;
const GAP: f64 = 14.0;
const TOP: f64 = 40.0;

/// Draws bars that start at zero or, on a logarithmic axis, at a power of ten below the smallest
/// value.
pub(crate) fn plot(
    title: &str,
    caption: &str,
    bars: &Bars,
    logarithmic: bool,
    say: impl Fn(f64) -> String,
) -> Result<String, Error> {
    let values = || {
        bars.iter()
            .flat_map(|(_, bars)| bars.iter().map(|bar| bar.1))
    };
    let scale = |value: f64| if logarithmic { value.log10() } else { value };
    let low = if logarithmic {
        values()
            .map(|value| scale(value).floor())
            .fold(f64::INFINITY, f64::min)
    } else {
        0.0
    };
    let high = values().map(scale).fold(low + f64::MIN_POSITIVE, f64::max);
    let count = bars.iter().map(|(_, bars)| bars.len()).sum::<usize>() as f64;
    let height = TOP + count * ROW + bars.len() as f64 * (GAP + ROW) + 40.0;
    let mut svg = String::new();
    writeln!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"white\"/>\n\
         <text x=\"20\" y=\"24\" font-size=\"16\">{title}</text>\n\
         <text x=\"20\" y=\"{}\">{caption}</text>",
        height - 14.0
    )?;
    let mut y = TOP;
    for (name, bars) in bars {
        y += GAP;
        writeln!(
            svg,
            "<text x=\"20\" y=\"{}\" font-weight=\"bold\">{name}</text>",
            y + 12.0
        )?;
        y += ROW;
        for ((how, value), colour) in bars.iter().zip(COLOURS) {
            let width = (scale(*value) - low) / (high - low) * (WIDTH - LEFT - RIGHT);
            writeln!(
                svg,
                "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{how}</text>\n\
                 <rect x=\"{LEFT}\" y=\"{}\" width=\"{width:.1}\" height=\"{}\" fill=\"{colour}\"/>\n\
                 <text x=\"{:.1}\" y=\"{}\">{}</text>",
                LEFT - 8.0,
                y + 12.0,
                y + 1.0,
                ROW - 3.0,
                LEFT + width + 6.0,
                y + 12.0,
                say(*value)
            )?;
            y += ROW;
        }
    }
    svg.push_str("</svg>\n");
    Ok(svg)
}
