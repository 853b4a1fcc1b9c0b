//! What was predicted, and what happened: the records, and the file that they are stored in.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Case, cases};
use crate::error::BenchError;
use crate::host_info::HostInfo;
use crate::mover::HikkoshiReport;

/// One move.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Moved {
    #[serde(deserialize_with = "known_case")]
    pub case: Case,
    pub round: u32,
    /// What `hikkoshi estimate --json` wrote before the move.
    pub prediction: Value,
    /// What `hikkoshi migrate` reported. `None`: pre-copy did not converge and was cancelled.
    pub account: Option<Box<HikkoshiReport>>,
    /// Processors that other processes used meanwhile.
    pub others_cores: f64,
    pub failure: Option<String>,
}

impl Moved {
    /// The prediction for the mode that was used.
    pub(super) fn predicted(&self) -> &Value {
        let modes = self.prediction["modes"].as_array();
        modes
            .into_iter()
            .flatten()
            .find(|mode| mode["mode"] == self.case.mode)
            .unwrap_or(&Value::Null)
    }

    /// The likely value that was predicted, and the measured one.
    pub(super) fn pair(&self, member: &str) -> Option<(f64, f64)> {
        let predicted = self.predicted()[member]["likely"].as_f64()?;
        Some((predicted, self.measured(member)?))
    }

    /// What was measured of a member of the prediction.
    #[allow(clippy::cast_precision_loss)] // far below 2^52
    pub(super) fn measured(&self, member: &str) -> Option<f64> {
        let account = &self.account.as_ref()?.statistics.account;
        let latency = &account.requests.request_latency_us;
        match member {
            "total_ms" => Some(account.total_ms),
            "downtime_ms" => account.downtime_ms,
            "rounds" => Some(f64::from(account.rounds)),
            "bytes" => Some(account.bytes.of_pages_and_disks() as f64),
            // The faults that post-copy answers. What the dirty log costs is not measured.
            "faults" if account.postcopy => Some(latency.count as f64),
            "slowdown" if account.postcopy => {
                let waited_ms = latency.count as f64 * latency.mean / 1e3;
                let ran_ms = account.total_ms - account.downtime_ms?;
                let vcpus = self.prediction["guest"]["vcpus"].as_f64()?;
                (ran_ms > 0.0).then(|| waited_ms / ran_ms / vcpus)
            }
            _ => None,
        }
    }

    /// Whether the measured value was between the predicted ends.
    pub(super) fn is_within(&self, member: &str) -> Option<bool> {
        let span = &self.predicted()[member];
        let measured = self.measured(member)?;
        let low = span["low"].as_f64()?;
        Some(measured >= low && span["high"].as_f64().is_none_or(|high| measured <= high))
    }
}

/// Everything that was measured, as JSON.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Results {
    pub host: HostInfo,
    pub moves: Vec<Moved>,
}

impl Results {
    /// Reads what an earlier run wrote to `--json`.
    ///
    /// # Errors
    /// When the file cannot be read, or has other contents.
    pub(super) fn read(path: &Path) -> Result<Self, BenchError> {
        let failed = |source| BenchError::File {
            doing: "reading the results of `--only estimate` from",
            path: path.to_owned(),
            source,
        };
        let text = std::fs::read_to_string(path).map_err(failed)?;
        serde_json::from_str(&text).map_err(|error| failed(error.into()))
    }
}

/// One of the cases of this bench.
fn known_case<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Case, D::Error> {
    let stored = Value::deserialize(from)?;
    let known = cases().into_iter().find(|case| json!(case) == stored);
    known.ok_or_else(|| serde::de::Error::custom(format!("there is no case {stored}")))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::mover::OwnReport;
    use crate::record::test_report;

    /// What is reported of a move that took so long.
    pub(in crate::estimate) fn test_account(total_ms: f64) -> Option<Box<HikkoshiReport>> {
        let change = |account: &mut hikkoshi_account::Account| {
            (account.total_ms, account.postcopy) = (total_ms, false);
        };
        match test_report(change) {
            OwnReport::Hikkoshi(report) => Some(report),
            OwnReport::Other(_) => None,
        }
    }

    #[test]
    fn what_was_stored_is_read_again() {
        for case in cases() {
            let moved = Moved {
                case,
                round: 1,
                prediction: json!({"modes": [{"mode": case.mode, "total_ms": {"likely": 5.0}}]}),
                account: test_account(6.0),
                others_cores: 0.0,
                failure: None,
            };
            let stored = serde_json::to_string(&moved).unwrap();
            let read: Moved = serde_json::from_str(&stored).unwrap();
            assert_eq!(read.case, case);
            assert_eq!(read.pair("total_ms"), Some((5.0, 6.0)));
        }
    }

    #[test]
    fn faults_are_measured_in_postcopy_only() {
        let mut moved = Moved {
            case: cases()[0],
            round: 0,
            prediction: json!({"guest": {"vcpus": 2}}),
            account: test_account(1010.0),
            others_cores: 0.0,
            failure: None,
        };
        let account = &mut moved.account.as_mut().unwrap().statistics.account;
        (account.downtime_ms, account.postcopy) = (Some(10.0), true);
        let latency = &mut account.requests.request_latency_us;
        (latency.count, latency.mean) = (500, 200.0);
        assert_eq!(moved.measured("faults"), Some(500.0));
        let lost = moved.measured("slowdown").unwrap();
        assert!(
            (lost - 0.05).abs() < 1e-9,
            "100 ms of 2 vCPUs in 1 s: {lost}"
        );
        moved.account.as_mut().unwrap().statistics.account.postcopy = false;
        assert_eq!(moved.measured("faults"), None);
    }

    #[test]
    fn an_unknown_case_is_refused() {
        let unknown = r#"{"case": {"line": "x"}, "round": 0, "prediction": 0, "account": 0,
            "others_cores": 0, "failure": null}"#;
        let error = serde_json::from_str::<Moved>(unknown).unwrap_err();
        assert!(error.to_string().contains("there is no case"), "{error}");
    }
}
