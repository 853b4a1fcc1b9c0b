//! Prometheus' text format, version 0.0.4
//! (<https://prometheus.io/docs/instrumenting/exposition_formats/>).

use std::fmt::{self, Display, Write as _};

/// The type of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// A number that only grows.
    Counter,
    /// A number.
    Gauge,
    /// Counts by size.
    Histogram,
}

impl Display for MetricKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        })
    }
}

/// The longest value of a label, in characters. Names of guests come from other programs.
const LABEL: usize = 200;

/// Metrics, as text.
#[derive(Debug, Default)]
pub(super) struct Exposition {
    text: String,
    name: &'static str,
}

impl Exposition {
    /// Begins a family of metrics. All its samples follow.
    pub(super) fn family(&mut self, name: &'static str, kind: MetricKind, help: &str) {
        self.name = name;
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(self.text, "# HELP {name} {}", Escaped(help, false));
        let _ = writeln!(self.text, "# TYPE {name} {kind}");
    }

    /// A sample of the family.
    pub(super) fn sample(&mut self, labels: &[(&str, &str)], value: f64) {
        self.sample_of("", labels, value);
    }

    /// A histogram: the counts of its buckets, which are disjoint and have these upper bounds, and
    /// the sum of what was observed.
    pub(super) fn histogram(
        &mut self,
        labels: &[(&str, &str)],
        buckets: &[(f64, u64)],
        all: u64,
        sum: f64,
    ) {
        let mut total = 0_u64;
        for (bound, count) in buckets {
            total = total.saturating_add(*count);
            let bound = bound.to_string();
            let labels = [labels, &[("le", &*bound)]].concat();
            self.sample_of("_bucket", &labels, count_value(total));
        }
        let all = all.max(total);
        let labels_of_all = [labels, &[("le", "+Inf")]].concat();
        self.sample_of("_bucket", &labels_of_all, count_value(all));
        self.sample_of("_sum", labels, sum);
        self.sample_of("_count", labels, count_value(all));
    }

    fn sample_of(&mut self, suffix: &str, labels: &[(&str, &str)], value: f64) {
        let _ = write!(self.text, "{}{suffix}", self.name);
        for (number, (label, value)) in labels.iter().enumerate() {
            let before = if number == 0 { '{' } else { ',' };
            let _ = write!(
                self.text,
                "{before}{label}=\"{}\"",
                Escaped(&bounded(value), true)
            );
        }
        let end = if labels.is_empty() { "" } else { "}" };
        let value = match value {
            _ if value.is_nan() => "NaN".to_owned(),
            f64::INFINITY => "+Inf".to_owned(),
            f64::NEG_INFINITY => "-Inf".to_owned(),
            value => value.to_string(),
        };
        let _ = writeln!(self.text, "{end} {value}");
    }

    pub(super) fn into_text(self) -> String {
        self.text
    }
}

/// A count as a value: these are floating-point numbers.
#[allow(clippy::cast_precision_loss)] // Exact up to 2^53.
pub(super) fn count_value(count: u64) -> f64 {
    count as f64
}

/// A text as the value of a label: its beginning, if it is long.
pub(super) fn bounded(text: &str) -> String {
    text.chars().take(LABEL).collect()
}

/// A text with the escapes of the format: in a label's value, or else in a help text.
struct Escaped<'a>(&'a str, bool);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars() {
            match character {
                '\\' => f.write_str("\\\\")?,
                '\n' => f.write_str("\\n")?,
                '"' if self.1 => f.write_str("\\\"")?,
                other => f.write_char(other)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::MetricKind;
    use proptest::prelude::*;

    /// Reads the value of the only label of a sample back, as Prometheus does.
    fn label_value(text: &str) -> String {
        let begin = text.find("{l=\"").unwrap() + 4;
        let mut value = String::new();
        let mut characters = text[begin..].chars();
        loop {
            match characters.next().unwrap() {
                '"' => break,
                '\\' => value.push(match characters.next().unwrap() {
                    'n' => '\n',
                    other => other,
                }),
                other => value.push(other),
            }
        }
        assert_eq!(characters.as_str(), "} 1\n");
        value
    }

    proptest! {
        #[test]
        fn any_text_can_be_the_value_of_a_label(text in any::<String>()) {
            let mut out = Exposition { text: String::new(), name: "a_metric" };
            out.sample(&[("l", &text)], 1.0);
            let sample = out.into_text();
            prop_assert_eq!(sample.lines().count(), 1);
            prop_assert_eq!(label_value(&sample), bounded(&text));
        }

        #[test]
        fn any_value_is_read_back(value in any::<f64>()) {
            let mut out = Exposition { text: String::new(), name: "a_metric" };
            out.sample(&[], value);
            let sample = out.into_text();
            let read: f64 = sample.trim_end().strip_prefix("a_metric ").unwrap().parse().unwrap();
            prop_assert!(read == value || (read.is_nan() && value.is_nan()));
        }

        #[test]
        fn the_buckets_of_a_histogram_are_cumulative(
            counts in prop::collection::vec(0..1000_u64, 0..20),
            slower in 0..10_u64,
        ) {
            let mut out = Exposition { text: String::new(), name: "a_metric" };
            let buckets: Vec<(f64, u64)> = (1..).map(f64::from).zip(counts.iter().copied()).collect();
            let all = counts.iter().sum::<u64>() + slower;
            out.histogram(&[("l", "v")], &buckets, all, 1.5);
            let text = out.into_text();
            let values: Vec<u64> = text
                .lines()
                .filter(|line| line.starts_with("a_metric_bucket"))
                .map(|line| line.rsplit(' ').next().unwrap().parse().unwrap())
                .collect();
            prop_assert!(values.is_sorted());
            prop_assert_eq!(values.len(), counts.len() + 1);
            prop_assert_eq!(*values.last().unwrap(), all);
            let ends = format!("a_metric_sum{{l=\"v\"}} 1.5\na_metric_count{{l=\"v\"}} {all}\n");
            prop_assert!(text.ends_with(&ends));
        }
    }

    #[test]
    fn a_family_has_its_help_and_type() {
        let mut out = Exposition::default();
        out.family("a_metric", MetricKind::Gauge, "A \\ and a \" and a\nline.");
        let expected = "# HELP a_metric A \\\\ and a \" and a\\nline.\n# TYPE a_metric gauge\n";
        assert_eq!(out.into_text(), expected);
    }
}
