//! A real Prometheus, which scrapes one target, and promtool's checks.

use crate::artifacts::prometheus;
use crate::{Lab, LabError, http_get, spawn};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long Prometheus may take to listen: measured are 30 ms.
const START_TIMEOUT: Duration = Duration::from_secs(120);
/// The time between two queries.
const POLL: Duration = Duration::from_millis(50);

/// A server that scrapes `http://TARGET/metrics` every 200 ms. On drop, it ends and its data are
/// removed.
///
/// It scrapes the first time 5 s after it was started: the interval of its service discovery cannot
/// be set. So a test starts it before other work.
#[derive(Debug)]
pub struct Prometheus {
    process: Child,
    address: SocketAddr,
    folder: PathBuf,
    _lab: Lab,
}

/// A value that a query has found.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The labels, the metric's name (`__name__`) included.
    pub labels: BTreeMap<String, String>,
    /// The value.
    pub value: f64,
}

impl Prometheus {
    /// Starts a server on a free port of the loopback address.
    ///
    /// # Errors
    /// When Prometheus was not set up (by `make browser`), or does not start.
    pub fn start(lab: &Lab, target: SocketAddr) -> Result<Self, LabError> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = lab.folder().join(format!("prometheus-{number}"));
        fs::create_dir(&folder).map_err(LabError::file("creating the folder", &folder))?;
        let configuration = folder.join("prometheus.yml");
        let text = format!(
            "global: {{scrape_interval: 200ms, scrape_timeout: 200ms}}\n\
             scrape_configs: [{{job_name: hikkoshi, static_configs: [{{targets: ['{target}']}}]}}]\n"
        );
        fs::write(&configuration, text).map_err(LabError::file("writing", &configuration))?;
        let log = folder.join("log");
        let stderr = File::create(&log).map_err(LabError::file("creating", &log))?;

        let mut command = Command::new(prometheus("prometheus")?);
        command
            .arg(format!("--config.file={}", configuration.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                folder.join("data").display()
            ))
            .arg("--web.listen-address=127.0.0.1:0")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(stderr);
        let mut process = spawn::spawn(command)?;
        let address = wait_ready(&mut process, &log);
        let mut this = Self {
            process,
            // Replaced below. If there is none, the process is ended on drop.
            address: target,
            folder,
            _lab: lab.clone(),
        };
        this.address = address?;
        Ok(this)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The result of a query now: empty if there is no such metric.
    ///
    /// # Errors
    /// When Prometheus refuses it, or the result is not a vector.
    pub fn query(&self, query: &str) -> Result<Vec<Sample>, LabError> {
        let mut path = "/api/v1/query?query=".to_owned();
        for byte in query.bytes() {
            // Writing to a string does not fail.
            let _ = write!(path, "%{byte:02X}");
        }
        let answer = http_get(self.address, &path)?;
        samples(&answer).ok_or_else(|| LabError::Http {
            address: self.address,
            path: format!("/api/v1/query?query={query}"),
            reason: format!("it answers {answer}"),
        })
    }

    /// Waits until the result of a query is not empty.
    ///
    /// # Errors
    /// At the time limit, with the reason if the target could not be scraped.
    pub fn wait_query(&self, query: &str, timeout: Duration) -> Result<Vec<Sample>, LabError> {
        let deadline = Instant::now() + timeout;
        loop {
            let found = self.query(query)?;
            if !found.is_empty() {
                return Ok(found);
            }
            if Instant::now() >= deadline {
                return Err(LabError::TimedOut {
                    what: format!("{query} in Prometheus"),
                    after: timeout,
                    seen: http_get(self.address, "/api/v1/targets?state=active")?,
                });
            }
            std::thread::sleep(POLL);
        }
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Waits until the server answers, and returns its address, which it logs.
fn wait_ready(process: &mut Child, log: &Path) -> Result<SocketAddr, LabError> {
    let deadline = Instant::now() + START_TIMEOUT;
    loop {
        let text = fs::read_to_string(log).map_err(LabError::file("reading", log))?;
        if let Some(address) = listening_on(&text) {
            return Ok(address);
        }
        let ended = process.try_wait().ok().flatten();
        if ended.is_some() || Instant::now() >= deadline {
            return Err(LabError::Command {
                command: "starting Prometheus".to_owned(),
                status: ended.map_or("it does not listen".to_owned(), |ended| ended.to_string()),
                stderr: text,
            });
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The address in the log of a server that answers queries.
fn listening_on(log: &str) -> Option<SocketAddr> {
    log.lines()
        .find(|line| line.contains("Server is ready to receive web requests"))?;
    let line = log.lines().find(|line| line.contains("\"Listening on\""))?;
    let (_, address) = line.split_once("address=")?;
    address.trim().parse().ok()
}

/// The samples of an answer, if it is one to an instant query for a vector
/// (<https://prometheus.io/docs/prometheus/latest/querying/api/>).
fn samples(answer: &str) -> Option<Vec<Sample>> {
    let answer: Value = serde_json::from_str(answer).ok()?;
    let found = answer["data"]["result"].as_array()?;
    found
        .iter()
        .map(|found| {
            let labels = found["metric"].as_object()?.iter();
            Some(Sample {
                labels: labels
                    .map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned())))
                    .collect::<Option<_>>()?,
                value: found["value"][1].as_str()?.parse().ok()?,
            })
        })
        .collect()
}

/// Checks the text of `/metrics`: its syntax, and the conventions for names
/// (`promtool check metrics`).
///
/// # Errors
/// When promtool objects to anything; its message is part of the error.
pub fn check_metrics(text: &str) -> Result<(), LabError> {
    promtool(&["check".as_ref(), "metrics".as_ref()], text)
}

/// Checks a file of rules (`promtool check rules`).
///
/// # Errors
/// When promtool objects to anything; its message is part of the error.
pub fn check_rules(file: &Path) -> Result<(), LabError> {
    let arguments = ["check", "rules", "--lint-fatal"].map(Path::new);
    promtool(&[&arguments[..], &[file]].concat(), "")
}

/// Runs a file of tests of rules (`promtool test rules`).
///
/// # Errors
/// When a test fails; promtool's message is part of the error.
pub fn test_rules(file: &Path) -> Result<(), LabError> {
    promtool(&["test".as_ref(), "rules".as_ref(), file], "")
}

fn promtool(arguments: &[&Path], input: &str) -> Result<(), LabError> {
    let program = prometheus("promtool")?;
    let mut command = Command::new(&program);
    command
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut process = spawn::spawn(command)?;
    if let Some(mut stdin) = process.stdin.take() {
        // It reads everything before it writes. If it ends instead, its status says so.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = process
        .wait_with_output()
        .map_err(LabError::file("running", program))?;
    if output.status.success() {
        return Ok(());
    }
    let words: Vec<_> = arguments
        .iter()
        .map(|word| word.to_string_lossy())
        .collect();
    let said = [output.stdout, output.stderr].concat();
    Err(LabError::Command {
        command: format!("promtool {}", words.join(" ")),
        status: output.status.to_string(),
        stderr: String::from_utf8_lossy(&said).trim().to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_server::TestServer;

    const METRIC: &str = "# HELP hikkoshi_rounds_total Rounds of pre-copy.\n\
                          # TYPE hikkoshi_rounds_total counter\n\
                          hikkoshi_rounds_total{mode=\"hybrid\"} 42\n";
    /// Only ends a test that hangs.
    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_metric_is_scraped_and_a_target_without_is_reported() {
        let lab = Lab::new().unwrap();
        // Both wait at the same time.
        let empty_server = TestServer::start(|_| None);
        let without = Prometheus::start(&lab, empty_server.address()).unwrap();
        let server = TestServer::start(|path| {
            (path == "/metrics").then(|| ("text/plain; version=0.0.4", METRIC.to_owned()))
        });
        let prometheus = Prometheus::start(&lab, server.address()).unwrap();
        assert_eq!(prometheus.query("hikkoshi_unknown").unwrap(), []);
        let query = "hikkoshi_rounds_total{mode=~\"h.*\"}";
        let found = prometheus.wait_query(query, LONG).unwrap();
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].value, 42.0);
        assert_eq!(found[0].labels["mode"], "hybrid");
        assert_eq!(found[0].labels["__name__"], "hikkoshi_rounds_total");
        assert_eq!(found[0].labels["instance"], server.address().to_string());

        let error = prometheus.query("sum(").unwrap_err().to_string();
        assert!(error.contains("parse error"), "{error}");
        let scalar = prometheus.query("1").unwrap_err().to_string();
        assert!(scalar.contains("scalar"), "{scalar}");

        without.wait_query("up == 0", LONG).unwrap();
        let error = without.wait_query("hikkoshi_rounds_total", Duration::ZERO);
        let error = error.unwrap_err().to_string();
        assert!(error.contains("HTTP status 404"), "{error}");

        let (process, folder) = (prometheus.process.id(), prometheus.folder.clone());
        drop(prometheus);
        assert!(!Path::new(&format!("/proc/{process}")).exists());
        assert!(!folder.exists());
    }

    #[test]
    fn promtool_checks_metrics() {
        check_metrics(METRIC).unwrap();
        for (text, objection) in [
            (
                METRIC.replace("_total", ""),
                "should have \"_total\" suffix",
            ),
            (METRIC.replace("# HELP", "# "), "no help text"),
            (METRIC.replace("42", "many"), "expected float"),
        ] {
            let error = check_metrics(&text).unwrap_err().to_string();
            assert!(error.contains(objection), "{error}");
        }
    }

    #[test]
    fn promtool_checks_and_tests_rules() {
        let lab = Lab::new().unwrap();
        let write = |name: &str, text: &str| {
            let file = lab.folder().join(name);
            fs::write(&file, text).unwrap();
            file
        };
        let rules = |expression: &str| {
            let alert = format!("{{alert: Lost, expr: '{expression}', for: 1m}}");
            format!("groups: [{{name: hikkoshi, rules: [{alert}]}}]")
        };
        let good = write("rules.yml", &rules("hikkoshi_lost > 0"));
        check_rules(&good).unwrap();
        let error = check_rules(&write("bad.yml", &rules("hikkoshi_lost >")));
        let error = error.unwrap_err().to_string();
        assert!(error.contains("could not parse expression"), "{error}");

        let test = |values: &str| {
            format!(
                "rule_files: [rules.yml]\n\
                 evaluation_interval: 1m\n\
                 tests:\n\
                 - interval: 1m\n  \
                   input_series: [{{series: hikkoshi_lost, values: '{values}'}}]\n  \
                   alert_rule_test:\n  \
                   - {{eval_time: 3m, alertname: Lost, exp_alerts: [{{exp_labels: {{}}}}]}}\n"
            )
        };
        test_rules(&write("fires.yml", &test("0 1 1 1"))).unwrap();
        let error = test_rules(&write("does-not.yml", &test("0 0 0 0")));
        let error = error.unwrap_err().to_string();
        assert!(error.contains("alertname: Lost"), "{error}");
    }

    #[test]
    fn an_address_is_taken_only_from_a_server_that_is_ready() {
        let listens = "msg=\"Listening on\" address=127.0.0.1:4567\n";
        assert_eq!(listening_on(listens), None);
        let ready = format!("{listens}msg=\"Server is ready to receive web requests.\"\n");
        assert_eq!(listening_on(&ready), "127.0.0.1:4567".parse().ok());
    }
}
