//! Reading criterion's results.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::path::Path;

use super::bars::Bars;

/// Median nanoseconds by series and parameter.
pub(crate) type Group = BTreeMap<String, BTreeMap<u64, f64>>;

/// Reads the medians of benchmarks named "series/parameter".
pub(crate) fn read(folder: &Path) -> Result<Group, Box<dyn Error>> {
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

/// Reads the medians of benchmarks named "region, method".
pub(crate) fn read_bars(folder: &Path) -> Result<Bars, Box<dyn Error>> {
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

fn median(folder: &Path) -> Result<Option<f64>, Box<dyn Error>> {
    let file = folder.join("new/estimates.json");
    if !file.exists() {
        return Ok(None);
    }
    let estimates: serde_json::Value = serde_json::from_str(&fs::read_to_string(file)?)?;
    Ok(estimates["median"]["point_estimate"].as_f64())
}
