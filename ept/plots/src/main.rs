//! Draws the plots of `ept/docs/cost.md`, `docs/dirty-logging.md` and `docs/preemption.md` from the
//! results of the benches, and prints the rows of their tables. In the folder `ept`:
//!
//! ```text
//! cargo run --package hikkoshi-plots -- --criterion target/criterion --ranges ranges.csv \
//!     --vcpus vcpus.csv --rates docs/rates.csv docs/plots
//! ```
//!
//! * `--criterion`: criterion's folder, which has the results of `hikkoshi-ept`'s bench `cost` and
//!   `hikkoshi-dirty`'s bench `trackers`;
//! * `--ranges`, `--vcpus`: the outputs of `hikkoshi-ept`'s benches of these names;
//! * `--rates`: rates of real software (`bench/rates/measure.sh`), for the model of what
//!   page-modification logging gains;
//! * `--steps`: the output of `hikkoshi-engine`'s bench `preemption` with `--ablation`.
//!
//! One SVG for each plot is written into the last folder. All times are medians.
#![allow(clippy::print_stdout)] // the rows are for people

mod bars;
mod labels;
mod lines;
mod measurements;
mod model;
mod picture;
mod ranges;
mod steps;
mod vcpus;

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::path::Path;
use std::{env, fs};

use labels::time;
use measurements::Group;
use plotters::style::RGBColor;

const COLOURS: [RGBColor; 6] = [
    RGBColor(0x1b, 0x6c, 0xa8),
    RGBColor(0xd1, 0x49, 0x5b),
    RGBColor(0xed, 0xae, 0x49),
    RGBColor(0x66, 0xa1, 0x82),
    RGBColor(0x8d, 0x5a, 0x97),
    RGBColor(0x5c, 0x5c, 0x5c),
];

/// Line plots: criterion's group, and what the horizontal axis shows. The file has the group's
/// name.
const LINES: [(&str, &str); 5] = [
    (
        "take by dirty pages",
        "dirty pages, of 16 GiB of guest memory",
    ),
    (
        "take by guest size",
        "guest memory in GiB; 1,000 pages dirty",
    ),
    (
        "trackers, take by dirty pages",
        "dirty pages, of 1 GiB of guest memory",
    ),
    (
        "trackers, take by guest size",
        "guest memory in GiB; 1,000 pages dirty, no others touched",
    ),
    (
        "trackers, take by touched memory",
        "GiB of the guest's 16 GiB that it has touched; 1,000 pages dirty",
    ),
];

/// Bar charts: criterion's group, and a caption.
const BARS: [(&str, &str); 3] = [
    ("unmap", "time to unmap a region; logarithmic"),
    ("age", "time to age a region; logarithmic"),
    (
        "trackers, writes",
        "time of 50,000 writes of the guest to as many pages; logarithmic",
    ),
];

const USAGE: &str = "usage: hikkoshi-plots [--criterion FOLDER] [--ranges CSV] [--vcpus CSV] \
                     [--rates CSV] [--steps CSV] OUTPUT_FOLDER";

fn main() -> Result<(), Box<dyn Error>> {
    let mut from = BTreeMap::new();
    let mut to = None;
    let mut arguments = env::args().skip(1);
    while let Some(word) = arguments.next() {
        match word.strip_prefix("--") {
            Some(kind @ ("criterion" | "ranges" | "vcpus" | "rates" | "steps")) => {
                from.insert(kind.to_owned(), arguments.next().ok_or(USAGE)?);
            }
            Some(_) => return Err(USAGE.into()),
            None if to.is_none() => to = Some(word),
            None => return Err(USAGE.into()),
        }
    }
    let to = to.ok_or(USAGE)?;
    fs::create_dir_all(&to)?;
    let measured = |group: &str| {
        let folder = Path::new(from.get("criterion")?).join(group);
        if !folder.exists() {
            println!("\n{group}: not measured");
        }
        folder.exists().then_some(folder)
    };
    let file = |name: &str| {
        let name = name.replace(", ", "-").replace(' ', "-");
        Path::new(&to).join(format!("{name}.svg"))
    };
    for (group, axis) in LINES {
        let Some(folder) = measured(group) else {
            continue;
        };
        let values = measurements::read(&folder)?;
        fs::write(file(group), lines::plot(group, axis, &values)?)?;
        rows(group, &values);
    }
    for (group, caption) in BARS {
        let Some(folder) = measured(group) else {
            continue;
        };
        let values = measurements::read_bars(&folder)?;
        fs::write(
            file(group),
            bars::plot(group, caption, &values, true, time)?,
        )?;
        println!("\n{group}");
        for (region, how, ns) in values
            .iter()
            .flat_map(|(region, bars)| bars.iter().map(move |(how, ns)| (region, how, ns)))
        {
            println!("| {region} | {how} | {} |", time(*ns));
        }
    }
    let output = |kind: &str| {
        let Some(name) = from.get(kind) else {
            return Ok(None);
        };
        let csv = fs::read_to_string(name)?;
        println!("\n{name}");
        for line in csv.lines() {
            println!("| {} |", line.replace(',', " | "));
        }
        Ok::<_, std::io::Error>(Some(csv))
    };
    if let Some(csv) = output("ranges")? {
        let (sent, stale) = ranges::read(&csv)?;
        for (name, title, values) in [
            ("ranges-stale", "stale pages sent, by ranges", stale),
            ("ranges-sent", "pages sent in all, by ranges", sent),
        ] {
            let caption = "the log taken in 1, 4, 16 or 64 ranges; guest of 16,384 pages";
            let svg = bars::plot(title, caption, &values, false, |value| format!("{value}"))?;
            fs::write(file(name), svg)?;
        }
    }
    if let Some(csv) = output("vcpus")? {
        let (writes, takes) = vcpus::read(&csv)?;
        let title = "writes of all vCPUs, by method";
        let caption = "millions per second; the log is taken every 10 ms";
        let millions = |rate: f64| format!("{:.2}", rate / 1e6);
        let svg = bars::plot(title, caption, &writes, false, millions)?;
        fs::write(file("vcpus-writes"), svg)?;
        let title = "take while vCPUs write, by method";
        let caption = "median time of a take of 4 GiB";
        let svg = bars::plot(title, caption, &takes, false, time)?;
        fs::write(file("vcpus-takes"), svg)?;
    }
    if let Some(csv) = output("rates")? {
        fs::write(file("model"), model::plot(&csv)?)?;
    }
    if let Some(csv) = output("steps")? {
        let title = "mean time of a page request, by step";
        let caption = "logarithmic; background fills the line";
        let svg = bars::plot(title, caption, &steps::read(&csv)?, true, |micros| {
            time(micros * 1e3)
        })?;
        fs::write(file("steps"), svg)?;
    }
    Ok(())
}

fn rows(title: &str, group: &Group) {
    println!(
        "\n{title}: {}",
        group.keys().cloned().collect::<Vec<_>>().join(" | ")
    );
    let parameters: BTreeSet<u64> = group
        .values()
        .flat_map(|series| series.keys().copied())
        .collect();
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
