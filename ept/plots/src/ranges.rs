//! Reading the output of `hikkoshi-ept`'s bench `ranges`.

use std::error::Error;

use super::bars::Bars;

/// Reads the pages sent and the stale pages sent, by workload and ranges.
pub(crate) fn read(csv: &str) -> Result<(Bars, Bars), Box<dyn Error>> {
    let (mut sent, mut stale) = (Bars::new(), Bars::new());
    for line in csv.lines() {
        let cells: Vec<&str> = line.split(',').collect();
        let [workload, rate, ranges, _, pages, stale_pages, ..] = cells[..] else {
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
