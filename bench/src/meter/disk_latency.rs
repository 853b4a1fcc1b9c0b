//! How long the guest's reads of its disk take, by QEMU's own histogram.

use hikkoshi_lab::{LabError, Vm};
use serde_json::{Value, json};

/// The edges of the histogram's buckets, ns: from 1 ms on, each a quarter higher than the one
/// before, 37 of them (up to 3 s).
fn edges() -> Vec<u64> {
    let next = |edge: &u64| Some(edge + edge / 4);
    std::iter::successors(Some(1_000_000), next)
        .take(37)
        .collect()
}

/// Starts to count, from zero.
///
/// # Errors
/// QEMU does not do it (`block-latency-histogram-set`, from 4.0 on).
pub(crate) fn begin_disk_latency(vm: &Vm) -> Result<(), LabError> {
    let devices = vm.qmp().execute("query-block", json!({}))?;
    let devices = devices.as_array().into_iter().flatten();
    for device in devices.filter_map(|device| device["qdev"].as_str()) {
        let arguments = json!({ "id": device, "boundaries-read": edges() });
        vm.qmp().execute("block-latency-histogram-set", arguments)?;
    }
    Ok(())
}

/// The 99th percentile of the reads since then, ms, as the upper edge of its bucket. `None`: there
/// was no read, or it took longer than all edges.
///
/// # Errors
/// QEMU does not answer.
pub(crate) fn disk_p99_ms(vm: &Vm) -> Result<Option<f64>, LabError> {
    Ok(p99_ms(&vm.qmp().execute("query-blockstats", json!({}))?))
}

/// The same, from the answer to `query-blockstats`: of the disk that has a histogram.
fn p99_ms(stats: &Value) -> Option<f64> {
    let mut disks = stats.as_array()?.iter();
    let histogram = disks.find_map(|disk| disk["stats"].get("rd_latency_histogram"))?;
    let numbers = |name: &str| -> Option<Vec<u64>> {
        let all = histogram[name].as_array()?;
        all.iter().map(Value::as_u64).collect()
    };
    let (bins, edges) = (numbers("bins")?, numbers("boundaries")?);
    let all: u64 = bins.iter().sum();
    let mut below = 0;
    let bucket = bins.iter().position(|count| {
        below += count;
        below * 100 >= all * 99
    })?;
    #[allow(clippy::cast_precision_loss)] // Far below 2^52.
    let ms = |ns: &u64| *ns as f64 / 1e6;
    edges.get(bucket).map(ms).filter(|_| all > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_percentile_is_the_upper_edge_of_its_bucket() {
        let of = |bins: [u64; 3]| {
            let histogram = json!({ "boundaries": [1_000_000, 2_000_000], "bins": bins });
            p99_ms(&json!([
                { "stats": {} },
                { "stats": { "rd_latency_histogram": histogram } }
            ]))
        };
        assert_eq!(of([99, 1, 0]), Some(1.0));
        assert_eq!(of([98, 2, 0]), Some(2.0));
        assert_eq!(of([50, 0, 50]), None);
        assert_eq!(of([0, 0, 0]), None);
        assert_eq!(p99_ms(&json!([{ "stats": {} }])), None);
        assert_eq!(edges().len(), 37);
        assert!(edges().is_sorted() && edges()[36] > 2_900_000_000);
    }
}
