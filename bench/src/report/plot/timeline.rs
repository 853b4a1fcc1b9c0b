//! The timeline of a page fault, as a picture: each place has a line, and each step is a dot on it.

use std::fmt::Write as _;

use super::axis::{Axis, Scale};
use super::chart::{COLOURS, rule, text};
use crate::record::{FaultTimeline, Place, Run};

const WIDTH: f64 = 800.0;
const LEFT: f64 = 140.0;
const RIGHT: f64 = 20.0;
/// The first line's distance from the top, and that of two lines.
const TOP: f64 = 86.0;
const LANE: f64 = 62.0;
/// Height of a step in the list below.
const ROW: f64 = 17.0;
const GREY: &str = "font-size=\"10\" fill=\"#666666\"";

/// The picture of each run that has a timeline, with its file name.
pub(super) fn timelines(subtitle: &[String; 2], runs: &[Run]) -> Vec<(String, String)> {
    let mut files: Vec<(String, String)> = Vec::new();
    for run in runs.iter().filter(|run| run.failure.is_none()) {
        let Some(timeline) = &run.timeline else {
            continue;
        };
        let name = format!("fault-timeline-{}.svg", run.case.network);
        if files.iter().all(|(other, _)| *other != name) {
            let title = format!(
                "An asynchronous page fault: {}, medians of {} faults",
                run.case.network, timeline.faults
            );
            files.push((name, draw(&title, subtitle, timeline)));
        }
    }
    files
}

#[allow(clippy::cast_precision_loss)] // a handful of lines
fn draw(title: &str, subtitle: &[String; 2], timeline: &FaultTimeline) -> String {
    let lanes = Place::ALL.len() as f64;
    let bottom = TOP + LANE * (lanes - 1.0) + 30.0;
    let list = bottom + 56.0;
    let height = list + ROW * timeline.steps.len() as f64 + 10.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n"
    );
    let bold = "font-size=\"15\" font-weight=\"bold\"";
    text(&mut svg, (10.0, 20.0), "start", bold, title);
    for (line, y) in subtitle.iter().zip([36.0, 48.0]) {
        text(&mut svg, (10.0, y), "start", GREY, line);
    }
    let times = timeline.steps.iter().map(|step| step.median_us);
    let axis = Axis::around("µs", Scale::Linear, times);
    let x = |us: f64| LEFT + axis.place(us) * (WIDTH - RIGHT - LEFT);
    let lane = |place: Place| Place::ALL.iter().position(|other| *other == place);
    let y = |place: Place| TOP + LANE * lane(place).unwrap_or(0) as f64;
    for (value, label) in axis.ticks() {
        rule(
            &mut svg,
            (x(value), TOP - 20.0),
            (x(value), bottom),
            "#e0e0e0",
        );
        text(&mut svg, (x(value), bottom + 15.0), "middle", "", &label);
    }
    text(
        &mut svg,
        (WIDTH - RIGHT, bottom + 32.0),
        "end",
        "",
        axis.label,
    );
    for place in Place::ALL {
        rule(
            &mut svg,
            (LEFT, y(place)),
            (WIDTH - RIGHT, y(place)),
            "#aaaaaa",
        );
        text(&mut svg, (10.0, y(place) + 4.0), "start", "", place.name());
    }
    // From each step to the next one.
    for pair in timeline.steps.windows(2) {
        if let [one, next] = pair {
            let from = (x(one.median_us), y(one.place));
            rule(
                &mut svg,
                from,
                (x(next.median_us), y(next.place)),
                "#444444",
            );
        }
    }
    for (number, step) in (1..).zip(&timeline.steps) {
        let (x, y) = (x(step.median_us), y(step.place));
        let colour = lane(step.place).and_then(|lane| COLOURS.get(lane));
        let colour = colour.unwrap_or(&"#444444");
        let _ = writeln!(
            svg,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{colour}\"/>"
        );
        // Above and below in turn, because steps can be close together.
        let beside = if number % 2 == 0 { y + 18.0 } else { y - 9.0 };
        text(
            &mut svg,
            (x, beside),
            "middle",
            "font-size=\"10\"",
            &number.to_string(),
        );
        let below = list + ROW * f64::from(number - 1);
        let what = format!("{number}. {}: {}", step.place.name(), step.what);
        text(&mut svg, (LEFT, below), "start", "font-size=\"11\"", &what);
        let us = format!("{:.1} µs", step.median_us);
        text(
            &mut svg,
            (LEFT - 12.0, below),
            "end",
            "font-size=\"11\"",
            &us,
        );
    }
    svg.push_str("</svg>\n");
    svg
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{System, Workload};
    use crate::record::{Step, test_run};

    #[test]
    fn each_step_is_a_dot_on_the_line_of_its_place() {
        let step = |place, median_us| Step {
            place,
            what: "something",
            median_us,
            p90_us: median_us,
        };
        let mut run = test_run(System::HikkoshiPostcopy, Workload::NanoTimeline, 1.0, 1.0);
        let steps = vec![
            step(Place::Kernel, 0.0),
            step(Place::Source, 50.0),
            step(Place::Guest, 100.0),
        ];
        run.timeline = Some(FaultTimeline { faults: 9, steps });
        let files = timelines(&Default::default(), &[run.clone(), run]);
        assert_eq!(files.len(), 1, "one picture for each network");
        let (name, svg) = &files[0];
        assert_eq!(name, "fault-timeline-1gbit.svg");
        assert_eq!(svg.matches("<circle").count(), 3);
        assert!(svg.contains("cx=\"140.0\" cy=\"148.0\""), "{svg}");
        assert!(svg.contains("cx=\"780.0\" cy=\"86.0\""), "{svg}");
        assert!(svg.contains("2. source engine: something"), "{svg}");
    }
}
