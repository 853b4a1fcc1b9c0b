//! Line plots with logarithmic axes.

use std::error::Error;

use plotters::prelude::*;

use super::COLOURS;
use super::labels::{short, time};
use super::measurements::Group;
use super::picture::{picture, text};

const SIZE: (u32, u32) = (720, 420);
const LEFT: i32 = 80;
/// Space for the names of the series.
const RIGHT: i32 = 200;
const TOP: i32 = 40;

/// Draws a line for each series of times. Points at 0 have no place on the axis and are left out.
#[allow(clippy::cast_precision_loss)] // parameters of benches
pub(crate) fn plot(title: &str, axis: &str, group: &Group) -> Result<String, Box<dyn Error>> {
    let points = || group.values().flatten().filter(|(x, _)| **x > 0);
    let last = points().map(|(x, _)| *x as f64).fold(10.0, f64::max);
    let times = || points().map(|(_, ns)| ns.log10());
    let low = times().fold(f64::INFINITY, |low, at| low.min(at.floor()));
    let high = times().fold(low + 1.0, |high, at| high.max(at.ceil()));
    picture(SIZE, |area| {
        text(area, title, (LEFT, 12), 16, &BLACK)?;
        // A little more than the decades, so that rounding does not take the last one away.
        let (x, y) = (
            0.999..last * 1.001,
            10f64.powf(low) * 0.999..10f64.powf(high) * 1.001,
        );
        let mut chart = ChartBuilder::on(area)
            .margin_top(TOP)
            .margin_right(RIGHT)
            .x_label_area_size(50)
            .y_label_area_size(LEFT)
            .build_cartesian_2d(x.log_scale(), y.log_scale())?;
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // from 1 on
        let parameter = |at: &f64| short(at.round() as u64);
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .x_desc(axis)
            .x_label_formatter(&parameter)
            .y_label_formatter(&|ns| time(*ns).replace(".0 ", " "))
            .draw()?;
        let names = (TOP + 4..).step_by(20);
        for (((name, series), colour), row) in group.iter().zip(COLOURS).zip(names) {
            let line = series.iter().filter(|(x, _)| **x > 0);
            let line: Vec<_> = line.map(|(x, ns)| (*x as f64, *ns)).collect();
            let dots = line.iter().map(|at| Circle::new(*at, 3, colour.filled()));
            chart.draw_series(dots)?;
            chart.draw_series(LineSeries::new(line, colour.stroke_width(2)))?;
            let right = SIZE.0.cast_signed() - RIGHT + 16;
            text(area, name, (right, row), 12, &colour)?;
        }
        Ok(())
    })
}
