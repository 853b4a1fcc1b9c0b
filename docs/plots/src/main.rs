//! Converts the results of `cargo bench -p hikkoshi-ept --bench cost` and the output of `--bench
//! ranges` into plots and table rows: `cargo run -p hikkoshi-plots --
//! target/criterion ranges.csv docs/dirty-logging`.
//!
//! Writes one SVG for each group into the last folder, and prints the rows of its table. All times
//! are criterion's medians.
#![allow(clippy::print_stdout)] // the rows are for people

mod bars;

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write;
use std::path::Path;
use std::{env, fs};

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 200.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 60.0;
const COLOURS: [&str; 6] = [
    "#1b6ca8", "#d1495b", "#edae49", "#66a182", "#8d5a97", "#5c5c5c",
];

/// Median nanoseconds by series and parameter.
type Group = BTreeMap<String, BTreeMap<u64, f64>>;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().collect();
    let [_, from, ranges, to] = &arguments[..] else {
        return Err("usage: plots CRITERION_FOLDER RANGES_CSV OUTPUT_FOLDER".into());
    };
    fs::create_dir_all(to)?;
    for (group, axis) in [
        (
            "take by dirty pages",
            "dirty pages, of 16 GiB of guest memory",
        ),
        (
            "take by guest size",
            "guest memory in GiB; 1,000 pages dirty",
        ),
    ] {
        let values = read(&Path::new(from).join(group))?;
        let file = Path::new(to).join(format!("{}.svg", group.replace(' ', "-")));
        fs::write(file, plot(group, axis, &values)?)?;
        rows(group, &values);
    }
    for (group, caption) in [
        ("unmap", "time to unmap a region; logarithmic"),
        ("age", "time to age a region; logarithmic"),
    ] {
        let values = read_bars(&Path::new(from).join(group))?;
        let file = Path::new(to).join(format!("{group}.svg"));
        fs::write(file, bars::plot(group, caption, &values, true, time)?)?;
        println!("\n{group}");
        for (region, how, ns) in values
            .iter()
            .flat_map(|(region, bars)| bars.iter().map(move |(how, ns)| (region, how, ns)))
        {
            println!("| {region} | {how} | {} |", time(*ns));
        }
    }
    let (sent, stale) = read_ranges(&fs::read_to_string(ranges)?)?;
    for (file, title, values) in [
        ("ranges-stale.svg", "stale pages sent, by ranges", stale),
        ("ranges-sent.svg", "pages sent in all, by ranges", sent),
    ] {
        let caption = "the log taken in 1, 4, 16 or 64 ranges; guest of 16,384 pages";
        let svg = bars::plot(title, caption, &values, false, |value| format!("{value}"))?;
        fs::write(Path::new(to).join(file), svg)?;
    }
    Ok(())
}

/// Reads the medians of benchmarks named "region, method".
fn read_bars(folder: &Path) -> Result<bars::Bars, Box<dyn Error>> {
    let mut bars: BTreeMap<String, Vec<(String, f64)>> = BTreeMap::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if let (Some((region, how)), Some(median)) = (name.split_once(", "), median(&entry.path())?)
        {
            bars.entry(region.into())
                .or_default()
                .push((how.into(), median));
        }
    }
    for how in bars.values_mut() {
        how.sort_by(|a, b| a.0.cmp(&b.0));
    }
    Ok(bars.into_iter().collect())
}

/// Reads the pages sent and the stale pages sent, by workload and ranges.
fn read_ranges(csv: &str) -> Result<(bars::Bars, bars::Bars), Box<dyn Error>> {
    let (mut sent, mut stale) = (bars::Bars::new(), bars::Bars::new());
    for line in csv.lines() {
        let cells: Vec<&str> = line.split(',').collect();
        let [workload, rate, ranges, _, pages, stale_pages, _] = cells[..] else {
            continue;
        };
        let Ok(ranges) = ranges.parse::<u32>() else {
            continue; // the heading, or what cargo says
        };
        let name = format!("{workload}, {rate}");
        for (bars, value) in [(&mut sent, pages), (&mut stale, stale_pages)] {
            let bar = (format!("{ranges} ranges"), value.parse()?);
            match bars.last_mut() {
                Some((last, group)) if *last == name => group.push(bar),
                _ => bars.push((name.clone(), vec![bar])),
            }
        }
    }
    Ok((sent, stale))
}

fn median(folder: &Path) -> Result<Option<f64>, Box<dyn Error>> {
    let file = folder.join("new/estimates.json");
    if !file.exists() {
        return Ok(None);
    }
    let estimates: serde_json::Value = serde_json::from_str(&fs::read_to_string(file)?)?;
    Ok(estimates["median"]["point_estimate"].as_f64())
}

fn read(folder: &Path) -> Result<Group, Box<dyn Error>> {
    let mut group = Group::new();
    for series in fs::read_dir(folder)? {
        let series = series?;
        if !series.file_type()?.is_dir() {
            continue;
        }
        for point in fs::read_dir(series.path())? {
            let point = point?;
            let name = point.file_name().to_string_lossy().into_owned();
            if let (Ok(parameter), Some(median)) = (name.parse(), median(&point.path())?) {
                let series = series.file_name().to_string_lossy().into_owned();
                group.entry(series).or_default().insert(parameter, median);
            }
        }
    }
    Ok(group)
}

fn rows(title: &str, group: &Group) {
    println!(
        "\n{title}: {}",
        group.keys().cloned().collect::<Vec<_>>().join(" | ")
    );
    let parameters: Vec<u64> = group
        .values()
        .flat_map(|series| series.keys().copied())
        .collect();
    let mut parameters = parameters;
    parameters.sort_unstable();
    parameters.dedup();
    for parameter in parameters {
        let cell = |series: &BTreeMap<u64, f64>| {
            series
                .get(&parameter)
                .map_or_else(String::new, |ns| time(*ns))
        };
        let cells: Vec<_> = group.values().map(cell).collect();
        println!("| {parameter} | {} |", cells.join(" | "));
    }
}

fn time(ns: f64) -> String {
    match ns {
        ns if ns < 1e3 => format!("{ns:.0} ns"),
        ns if ns < 1e6 => format!("{:.1} µs", ns / 1e3),
        ns => format!("{:.1} ms", ns / 1e6),
    }
}

fn short(number: u64) -> String {
    match number {
        number if number >= 1_000_000 => {
            format!("{:.1} M", number as f64 / 1e6).replace(".0 ", " ")
        }
        number if number >= 1_000 => format!("{} k", number / 1_000),
        number => number.to_string(),
    }
}

/// Draws a plot with logarithmic axes.
fn plot(title: &str, axis: &str, group: &Group) -> Result<String, Box<dyn Error>> {
    let points = || group.values().flatten();
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
        for (index, (parameter, ns)) in series.iter().enumerate() {
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
