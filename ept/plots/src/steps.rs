//! Reading what `hikkoshi-engine`'s bench `preemption` prints with `--ablation`.

use std::error::Error;

use super::bars::Bars;

/// Reads the mean time of a page request, µs, by step, and by line and size of the page.
pub(crate) fn read(csv: &str) -> Result<Bars, Box<dyn Error>> {
    let mut means = Bars::new();
    for line in csv.lines().skip(1) {
        let cells: Vec<&str> = line.split(',').collect();
        let [step, gbit, kib, mean, ..] = cells[..] else {
            return Err(format!("a step with {} cells: {line}", cells.len()).into());
        };
        let page = match kib {
            "4" => "4 KiB".to_owned(),
            kib => format!("{} MiB", kib.parse::<u32>()? / 1024),
        };
        let bar = (format!("{gbit} Gbit/s, {page}"), mean.parse()?);
        match means.iter_mut().find(|(name, _)| name == step) {
            Some((_, bars)) => bars.push(bar),
            None => means.push((step.to_owned(), vec![bar])),
        }
    }
    Ok(means)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_step_are_together() {
        let csv = "steps,Gbit/s,page in KiB,mean in µs,p50,p99,background in MB/s\n\
                   none,10,4,3598,1,2,3\nall,10,4,56,1,2,3\nnone,1,2048,34000,1,2,3\n";
        let bar = |name: &str, mean: f64| (name.to_owned(), mean);
        let none = vec![
            bar("10 Gbit/s, 4 KiB", 3598.0),
            bar("1 Gbit/s, 2 MiB", 34000.0),
        ];
        let all = vec![bar("10 Gbit/s, 4 KiB", 56.0)];
        let expected = vec![("none".to_owned(), none), ("all".to_owned(), all)];
        assert_eq!(read(csv).unwrap(), expected);
    }
}
