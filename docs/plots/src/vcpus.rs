//! Reading the output of `hikkoshi-ept`'s bench `vcpus`.

use std::error::Error;

use super::bars::Bars;

/// Reads the writes per second and the nanoseconds of the median take, by vCPUs and method.
pub(crate) fn read(csv: &str) -> Result<(Bars, Bars), Box<dyn Error>> {
    let (mut writes, mut takes) = (Bars::new(), Bars::new());
    for line in csv.lines() {
        let cells: Vec<&str> = line.split(',').collect();
        let [vcpus, method, rate, _, _, _, _, median, _] = cells[..] else {
            continue;
        };
        let Ok(vcpus) = vcpus.parse::<u32>() else {
            continue; // the heading, or what cargo says
        };
        let name = format!("{vcpus} vCPUs");
        let nanoseconds = median.parse::<f64>()? * 1e3;
        for (bars, value) in [(&mut writes, rate.parse()?), (&mut takes, nanoseconds)] {
            if value == 0.0 {
                continue; // there is no take without a log
            }
            let bar = (method.to_owned(), value);
            match bars.last_mut() {
                Some((last, group)) if *last == name => group.push(bar),
                _ => bars.push((name.clone(), vec![bar])),
            }
        }
    }
    Ok((writes, takes))
}
