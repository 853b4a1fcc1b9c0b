//! Horizontal bar charts.

use std::error::Error;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::COLOURS;
use super::picture::{picture, text};

/// Groups of bars: the name of each group, and the name and value of each of its bars.
pub(crate) type Bars = Vec<(String, Vec<(String, f64)>)>;

const WIDTH: i32 = 720;
const LEFT: i32 = 230;
const RIGHT: i32 = 90;
const ROW: i32 = 18;
const GAP: i32 = 14;
const TOP: i32 = 40;

/// Draws bars that start at zero or, on a logarithmic axis, at a power of ten below the smallest
/// value.
#[allow(clippy::cast_possible_truncation)] // pixels
pub(crate) fn plot(
    title: &str,
    caption: &str,
    bars: &Bars,
    logarithmic: bool,
    say: impl Fn(f64) -> String,
) -> Result<String, Box<dyn Error>> {
    let values = || {
        bars.iter()
            .flat_map(|(_, bars)| bars.iter().map(|bar| bar.1))
    };
    let scale = |value: f64| if logarithmic { value.log10() } else { value };
    let low = if logarithmic {
        values().fold(f64::INFINITY, |low, value| low.min(scale(value).floor()))
    } else {
        0.0
    };
    let high = values().map(scale).fold(low + f64::MIN_POSITIVE, f64::max);
    let groups = i32::try_from(bars.len())?;
    let rows = i32::try_from(bars.iter().map(|(_, bars)| bars.len()).sum::<usize>())?;
    let height = TOP + rows * ROW + groups * (GAP + ROW) + 40;
    picture((WIDTH.unsigned_abs(), height.unsigned_abs()), |area| {
        text(area, title, (20, 10), 16, &BLACK)?;
        text(area, caption, (20, height - 26), 12, &BLACK)?;
        let before = (FontFamily::SansSerif, 12).into_font().color(&BLACK);
        let before = before.pos(Pos::new(HPos::Right, VPos::Top));
        let mut y = TOP;
        for (name, bars) in bars {
            y += GAP;
            text(area, name, (20, y), 12, &BLACK)?;
            y += ROW;
            for ((how, value), colour) in bars.iter().zip(COLOURS) {
                let part = (scale(*value) - low) / (high - low);
                let end = LEFT + (part * f64::from(WIDTH - LEFT - RIGHT)).round() as i32;
                area.draw(&Text::new(how.as_str(), (LEFT - 8, y + 2), before.clone()))?;
                let bar = [(LEFT, y + 1), (end, y + ROW - 2)];
                area.draw(&Rectangle::new(bar, colour.filled()))?;
                text(area, &say(*value), (end + 6, y + 2), 12, &BLACK)?;
                y += ROW;
            }
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_bar_has_the_largest_value() {
        let bars = vec![(
            "a < b".to_owned(),
            vec![("half".to_owned(), 50.0), ("all".to_owned(), 100.0)],
        )];
        let svg = plot("title", "caption", &bars, false, |value| {
            format!("{value} µs")
        })
        .unwrap();
        for text in ["a &lt; b", "half", "100 µs", "title", "caption"] {
            assert!(svg.contains(text), "{text}: {svg}");
        }
        assert!(
            svg.contains("width=\"200\"") && svg.contains("width=\"400\""),
            "{svg}"
        );
    }
}
