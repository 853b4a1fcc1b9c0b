//! What was predicted, and what happened: the records, and the file that they are stored in.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Case, cases};
use crate::error::BenchError;
use crate::host_info::HostInfo;

/// One move.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Moved {
    #[serde(deserialize_with = "known_case")]
    pub case: Case,
    pub round: u32,
    /// What `hikkoshi estimate --json` wrote before the move.
    pub prediction: Value,
    /// What `hikkoshi migrate --json` wrote; `null` if pre-copy did not converge and was cancelled.
    pub account: Value,
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

    pub(super) fn measured(&self, member: &str) -> Option<f64> {
        match member {
            "bytes" => {
                let bytes = &self.account["bytes"];
                let of = |kind: &str| bytes[kind].as_f64();
                Some(of("precopy")? + of("background")? + of("urgent")?)
            }
            // The faults that post-copy answers. What the dirty log costs is not measured.
            "faults" | "slowdown" if self.account["postcopy"] != true => None,
            "faults" => self.account["request_latency_us"]["count"].as_f64(),
            "slowdown" => {
                let latency = &self.account["request_latency_us"];
                let waited_ms = latency["count"].as_f64()? * latency["mean"].as_f64()? / 1e3;
                let ran_ms = self.measured("total_ms")? - self.measured("downtime_ms")?;
                let vcpus = self.prediction["guest"]["vcpus"].as_f64()?;
                (ran_ms > 0.0).then(|| waited_ms / ran_ms / vcpus)
            }
            _ => self.account[member].as_f64(),
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
mod tests {
    use super::*;

    #[test]
    fn what_was_stored_is_read_again() {
        for case in cases() {
            let moved = Moved {
                case,
                round: 1,
                prediction: json!({"modes": [{"mode": case.mode, "total_ms": {"likely": 5.0}}]}),
                account: json!({"total_ms": 6.0}),
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
            account: json!({"total_ms": 1010.0, "downtime_ms": 10.0, "postcopy": true,
                "request_latency_us": {"count": 500, "mean": 200.0}}),
            others_cores: 0.0,
            failure: None,
        };
        assert_eq!(moved.measured("faults"), Some(500.0));
        let lost = moved.measured("slowdown").unwrap();
        assert!(
            (lost - 0.05).abs() < 1e-9,
            "100 ms of 2 vCPUs in 1 s: {lost}"
        );
        moved.account["postcopy"] = json!(false);
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
