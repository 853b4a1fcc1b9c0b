//! Line plots with logarithmic axes.

use std::fmt::{Error, Write};

use super::COLOURS;
use super::labels::{short, time};
use super::measurements::Group;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 200.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 60.0;
/// Draws a line for each series of times. Points at 0 have no place on the axis and are left out.
pub(crate) fn plot(title: &str, axis: &str, group: &Group) -> Result<String, Error> {
    let points = || group.values().flatten().filter(|(x, _)| **x > 0);
    let x_end = points()
        .map(|(x, _)| (*x as f64).log10())
        .fold(0.0, f64::max)
        .max(1.0);
    let low = points()
        .map(|(_, y)| y.log10().floor())
        .fold(f64::INFINITY, f64::min);
    let high = points()
        .map(|(_, y)| y.log10().ceil())
        .fold(low + 1.0, f64::max);
    let x = |value: f64| LEFT + value / x_end * (WIDTH - LEFT - RIGHT);
    let y = |value: f64| HEIGHT - BOTTOM - (value - low) / (high - low) * (HEIGHT - TOP - BOTTOM);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"24\" font-size=\"16\">{title}</text>\n\
         <text x=\"{LEFT}\" y=\"{}\">{axis}</text>\n",
        HEIGHT - 16.0
    );
    let mut decade = low;
    while decade <= high {
        let (at, right) = (y(decade), WIDTH - RIGHT);
        writeln!(svg, "<path d=\"M{LEFT} {at}H{right}\" stroke=\"#ddd\"/>")?;
        let label = time(10f64.powf(decade)).replace(".0 ", " ");
        writeln!(
            svg,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{label}</text>",
            LEFT - 8.0,
            at + 4.0
        )?;
        decade += 1.0;
    }
    let mut parameters: Vec<u64> = points().map(|(parameter, _)| *parameter).collect();
    parameters.sort_unstable();
    parameters.dedup();
    for parameter in parameters {
        let at = x((parameter as f64).log10());
        let (bottom, label) = (HEIGHT - BOTTOM, short(parameter));
        writeln!(
            svg,
            "<text x=\"{at}\" y=\"{}\" text-anchor=\"middle\">{label}</text>",
            bottom + 18.0
        )?;
    }
    for ((number, (name, series)), colour) in group.iter().enumerate().zip(COLOURS) {
        let mut path = String::new();
        let shown = series.iter().filter(|(x, _)| **x > 0);
        for (index, (parameter, ns)) in shown.enumerate() {
            let (x, y) = (x((*parameter as f64).log10()), y(ns.log10()));
            write!(path, "{}{x:.1} {y:.1}", if index == 0 { 'M' } else { 'L' })?;
            writeln!(
                svg,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>"
            )?;
        }
        writeln!(
            svg,
            "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>"
        )?;
        let (right, row) = (WIDTH - RIGHT + 16.0, TOP + 20.0 * number as f64 + 10.0);
        writeln!(
            svg,
            "<text x=\"{right}\" y=\"{row}\" fill=\"{colour}\">{name}</text>"
        )?;
    }
    svg.push_str("</svg>\n");
    Ok(svg)
}
