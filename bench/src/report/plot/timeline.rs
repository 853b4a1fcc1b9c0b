//! The timeline of a page fault, as a picture: each place has a line, and each step is a dot on it.

use plotters::coord::ranged1d::{BoldPoints, Ranged as _, ValueFormatter as _};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::axis::{Axis, Scale};
use super::chart::{Area, COLOURS, GREY, LIGHT, font, heading, picture};
use crate::error::DrawError;
use crate::record::{FaultTimeline, Place, Run, Step};

const WIDTH: i32 = 800;
const LEFT: i32 = 140;
const RIGHT: i32 = 20;
/// The first line's distance from the top, and that of two lines.
const TOP: i32 = 86;
const LANE: i32 = 62;
/// Height of a step in the list below.
const ROW: i32 = 17;
const DARK: RGBColor = RGBColor(0x44, 0x44, 0x44);
const PLACE: RGBColor = RGBColor(0xaa, 0xaa, 0xaa);

/// The picture of each run that has a timeline, with its file name.
///
/// # Errors
/// When the library cannot draw.
pub(super) fn timelines(
    subtitle: &[String; 2],
    runs: &[Run],
) -> Result<Vec<(String, String)>, DrawError> {
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
            let [width, height] = [WIDTH, list(rows(timeline.steps.len())) + 10];
            let size = (width.unsigned_abs(), height.unsigned_abs());
            let svg = picture(size, |area| {
                heading(area, 10, &title, subtitle)?;
                draw(area, timeline)
            })?;
            files.push((name, svg));
        }
    }
    Ok(files)
}

/// The height of this many steps of the list.
fn rows(steps: usize) -> i32 {
    ROW * i32::try_from(steps).unwrap_or(0)
}

/// Where the axis is, below the lines of all places.
fn bottom() -> i32 {
    y(Place::ALL.len() - 1) + 30
}

/// Where the list is, at this distance from its beginning.
fn list(down: i32) -> i32 {
    bottom() + 56 + down
}

/// Where the line of a place is.
fn y(lane: usize) -> i32 {
    TOP + LANE * i32::try_from(lane).unwrap_or(0)
}

fn lane(place: Place) -> usize {
    let place = Place::ALL.iter().position(|other| *other == place);
    place.unwrap_or(0)
}

fn draw(area: &Area<'_>, timeline: &FaultTimeline) -> Result<(), DrawError> {
    let times = timeline.steps.iter().map(|step| step.median_us);
    let axis = Axis::around("µs", Scale::Linear, times);
    let x = |us: f64| axis.map(&us, (LEFT, WIDTH - RIGHT));
    let rule = |from, to, colour: RGBColor| area.draw(&PathElement::new([from, to], colour));
    let text = |at, text: &str, anchor, size, colour| {
        let style = font(size, colour).pos(Pos::new(anchor, VPos::Center));
        area.draw(&Text::new(text, at, style))
    };
    for value in axis.key_points(BoldPoints(10)) {
        let label = axis.format_ext(&value);
        rule((x(value), TOP - 20), (x(value), bottom()), LIGHT)?;
        text((x(value), bottom() + 10), &label, HPos::Center, 12, BLACK)?;
    }
    let end = (WIDTH - RIGHT, bottom() + 28);
    text(end, axis.label, HPos::Right, 12, BLACK)?;
    for place in Place::ALL {
        let y = y(lane(place));
        rule((LEFT, y), (WIDTH - RIGHT, y), PLACE)?;
        text((10, y), place.name(), HPos::Left, 12, BLACK)?;
    }
    let at = |step: &Step| (x(step.median_us), y(lane(step.place)));
    let path = PathElement::new(timeline.steps.iter().map(at).collect::<Vec<_>>(), DARK);
    area.draw(&path)?;
    for (number, step) in (1..).zip(&timeline.steps) {
        let at = at(step);
        let colour = COLOURS.get(lane(step.place)).unwrap_or(&DARK);
        area.draw(&Circle::new(at, 4, colour.filled()))?;
        // Above and below in turn, because steps can be close together.
        let beside = if number % 2 == 0 { 14 } else { -12 };
        let label = number.to_string();
        text((at.0, at.1 + beside), &label, HPos::Center, 10, BLACK)?;
        let below = list(rows(number - 1));
        let what = format!("{number}. {}: {}", step.place.name(), step.what);
        text((LEFT, below), &what, HPos::Left, 11, BLACK)?;
        let us = format!("{:.1} µs", step.median_us);
        text((LEFT - 12, below), &us, HPos::Right, 11, GREY)?;
    }
    Ok(())
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
            what: "something".to_owned(),
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
        let files = timelines(&Default::default(), &[run.clone(), run]).unwrap();
        assert_eq!(files.len(), 1, "one picture for each network");
        let (name, svg) = &files[0];
        assert_eq!(name, "fault-timeline-1gbit.svg");
        assert_eq!(svg.matches("<circle").count(), 3);
        assert!(svg.contains("cx=\"140\" cy=\"148\""), "{svg}");
        assert!(svg.contains("cy=\"86\""), "the first place is above: {svg}");
        assert!(svg.contains("2. source engine: something"), "{svg}");
    }
}
