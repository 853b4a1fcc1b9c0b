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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_without_a_log_has_writes_and_no_take() {
        let csv = "vCPUs,method,writes/s,exits/s,kicks/s,takes/s,pages,median,worst\n\
                   1,no log,3000000,0,0,0,0,0,0\n\
                   1,dirty flags,2000000,0,20,20,500,7000,9000\n";
        let (writes, takes) = read(csv).unwrap();
        let bar = |name: &str, value: f64| (name.to_owned(), value);
        let one = |bars: Vec<(String, f64)>| vec![("1 vCPUs".to_owned(), bars)];
        assert_eq!(
            writes,
            one(vec![bar("no log", 3e6), bar("dirty flags", 2e6)])
        );
        assert_eq!(takes, one(vec![bar("dirty flags", 7e6)]));
    }
}
