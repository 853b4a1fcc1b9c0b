//! The model of what page-modification logging (PML) gains over write protection, and where
//! measured software is in it.

use std::error::Error;

use plotters::prelude::*;

use super::COLOURS;
use super::labels::short;
use super::picture::{picture, text};

const SIZE: (u32, u32) = (720, 420);
const LEFT: i32 = 60;
/// Space for the names of the workloads.
const RIGHT: i32 = 200;
const TOP: i32 = 40;

/// What an exit may cost beside the instructions of its handler, cycles.
const EXIT: [f64; 3] = [1_000.0, 2_000.0, 4_000.0];
/// What else PML saves for each page, instructions: the handler, without what its take costs more.
const SAVED: f64 = 330.0;
/// What PML's take costs for each page, instructions.
const TAKE: f64 = 327.0;

/// The gain in throughput, in percent, of a guest that executes so many instructions for each page
/// that becomes dirty.
fn gain(instructions: f64, exit: f64) -> f64 {
    100.0 * (exit + SAVED) / (instructions + TAKE)
}

/// By workload: millions of instructions between two takes, and instructions for each page.
type Rates = Vec<(String, Vec<(f64, f64)>)>;

/// Reads `workload,millions of instructions between takes,instructions per page`.
fn read(csv: &str) -> Result<Rates, Box<dyn Error>> {
    let mut rates = Rates::new();
    for line in csv.lines().skip(1) {
        let cells: Vec<&str> = line.split(',').collect();
        let [workload, interval, instructions] = cells[..] else {
            return Err(format!("a line of rates with {} cells: {line}", cells.len()).into());
        };
        let point = (interval.parse()?, instructions.parse()?);
        match rates.last_mut() {
            Some((last, points)) if last == workload => points.push(point),
            _ => rates.push((workload.to_owned(), vec![point])),
        }
    }
    match rates.is_empty() {
        true => Err("there are no rates".into()),
        false => Ok(rates),
    }
}

/// Draws for each workload the gain by the interval of the takes: a line, and a band between the
/// least and the greatest cost of an exit.
pub(crate) fn plot(csv: &str) -> Result<String, Box<dyn Error>> {
    let rates = read(csv)?;
    let intervals = || {
        rates
            .iter()
            .flat_map(|(_, points)| points.iter().map(|(x, _)| *x))
    };
    let low = intervals().fold(f64::INFINITY, f64::min);
    let high = intervals().fold(low, f64::max);
    let [least, middle, greatest] = EXIT;
    picture(SIZE, |area| {
        let title = "gain in throughput of PML over write protection (model)";
        text(area, title, (LEFT, 12), 16, &BLACK)?;
        let percent = 0.1..200f64;
        let mut chart = ChartBuilder::on(area)
            .margin_top(TOP)
            .margin_right(RIGHT)
            .x_label_area_size(50)
            .y_label_area_size(LEFT)
            .build_cartesian_2d((low * 0.9..high * 1.1).log_scale(), percent.log_scale())?;
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // from 1 on
        let millions = |at: &f64| short(at.round() as u64);
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .x_desc("millions of instructions between two takes")
            .x_label_formatter(&millions)
            .y_label_formatter(&|percent| format!("+{percent} %"))
            .draw()?;
        let right = SIZE.0.cast_signed() - RIGHT + 16;
        let names = (TOP + 4..).step_by(20);
        for (((workload, points), colour), row) in rates.iter().zip(COLOURS).zip(names) {
            let gains = |exit: f64| points.iter().map(move |(x, each)| (*x, gain(*each, exit)));
            let band: Vec<_> = gains(greatest).chain(gains(least).rev()).collect();
            chart.draw_series([Polygon::new(band, colour.mix(0.15))])?;
            chart.draw_series(LineSeries::new(gains(middle), colour.stroke_width(2)))?;
            text(area, workload, (right, row), 12, &colour)?;
        }
        let notes = ["lines: an exit of 2,000 cycles,", "bands: 1,000 to 4,000"];
        for (words, row) in notes.iter().zip((TOP + 104..).step_by(16)) {
            text(area, words, (right, row), 12, &BLACK)?;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gain_is_that_of_the_counts() {
        // From the tables of cost.md: +15.7, +50.7 and +7.9 %.
        for (instructions, exit, percent) in [
            (8_114.0, 1_000.0, 15.7),
            (8_114.0, 4_000.0, 50.7),
            (16_551.0, 1_000.0, 7.9),
        ] {
            let difference = gain(instructions, exit) - percent;
            assert!(difference.abs() < 0.8, "{difference}");
        }
    }

    #[test]
    fn rates_are_grouped_by_workload() {
        let csv = "workload,interval,per page\nredis,12,8000\nredis,1200,120000\nsort,12,900\n";
        let redis = vec![(12.0, 8e3), (1_200.0, 1.2e5)];
        let sort = vec![(12.0, 900.0)];
        let expected = [("redis".to_owned(), redis), ("sort".to_owned(), sort)];
        assert_eq!(read(csv).unwrap(), expected);
        assert!(read("head\nredis,12\n").is_err());
        assert!(read("head\n").is_err());
    }
}
