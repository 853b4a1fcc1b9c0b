//! What is measured: lines, workloads, systems, and in which order.

use hikkoshi_lab::{QemuMigrationMode, Shape, Workload};
use serde::Serialize;
use std::fmt;
use std::time::Duration;

use crate::args::Args;
use crate::error::BenchError;

/// The guest's memory, MiB.
pub const RAM_MIB: u64 = 1024;
/// What its one virtual processor writes to at random, MiB.
pub const WORKING_SET_MIB: u64 = 600;
/// From where on an access counts as slow, µs: far above an undisturbed one (0.3 µs), and below
/// the fastest fault.
pub const SLOW_US: u64 = 20;
/// Time between two lines of the guest, ms.
pub const REPORT_MS: u64 = 100;
/// Connections of QEMU's multifd: its default, and the processors of the machine it was chosen on.
const MULTIFD_CONNECTIONS: u32 = 2;

/// What lies between the two hosts.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
pub enum LineKind {
    /// TCP over one namespace's loopback.
    Loopback,
    /// Two namespaces and a veth, shaped to so many Gbit/s.
    Gbit(u64),
}

impl LineKind {
    const ALL: [Self; 3] = [Self::Loopback, Self::Gbit(10), Self::Gbit(1)];

    /// The shape, if it has one: a burst of 512 KiB, and a queue of 50 ms.
    pub fn shape(self) -> Option<Shape> {
        match self {
            Self::Loopback => None,
            Self::Gbit(gbit) => Some(Shape {
                rate_bits: gbit * 1_000_000_000,
                burst_bytes: 512 * 1024,
                latency: Duration::from_millis(50),
            }),
        }
    }
}

impl fmt::Display for LineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Loopback => f.write_str("loopback"),
            Self::Gbit(gbit) => write!(f, "{gbit}gbit"),
        }
    }
}

/// What the guest does meanwhile.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
pub enum Load {
    /// Writes as fast as it can, until all pages are there.
    Busy,
    /// Writes so many pages a second: pre-copy converges after several rounds.
    Paced(u64),
    /// As [`Load::Busy`], moved by pre-copy: called off after a while.
    Endless,
}

impl Load {
    /// A rate that gives QEMU's pre-copy several rounds on that line: two fifths of the pages
    /// that it carries.
    fn paced(line: LineKind) -> Self {
        match line {
            LineKind::Gbit(1) => Self::Paced(12_000),
            _ => Self::Paced(60_000),
        }
    }

    /// What the guest is told.
    pub fn workload(self) -> Workload {
        let workload = Workload::dirty(WORKING_SET_MIB)
            .option("slow_us", SLOW_US)
            .option("every_ms", REPORT_MS);
        match self {
            Self::Busy | Self::Endless => workload,
            Self::Paced(rate) => workload.rate(rate),
        }
    }

    /// Its name in filters and tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Busy => "busy",
            Self::Paced(_) => "paced",
            Self::Endless => "endless",
        }
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Who moves the guest, and how.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
pub enum System {
    /// Memory first.
    HikkoshiPrecopy,
    /// The guest first.
    HikkoshiPostcopy,
    /// One round of memory, the guest, the rest.
    HikkoshiHybrid,
    /// Memory first, one connection.
    QemuPrecopy,
    /// Memory first, several connections.
    QemuMultifd,
    /// One round of memory, the guest, the rest.
    QemuPostcopy,
    /// The same, with a connection of its own for pages that the guest waits for.
    QemuPreempt,
}

impl System {
    /// hikkoshi's name for the mode.
    pub fn hikkoshi_mode(self) -> Option<&'static str> {
        match self {
            Self::HikkoshiPrecopy => Some("precopy"),
            Self::HikkoshiPostcopy => Some("postcopy"),
            Self::HikkoshiHybrid => Some("hybrid"),
            _ => None,
        }
    }

    /// QEMU's way, where it is QEMU's.
    pub fn qemu_mode(self) -> Option<QemuMigrationMode> {
        match self {
            Self::QemuPrecopy => Some(QemuMigrationMode::Precopy),
            Self::QemuMultifd => Some(QemuMigrationMode::Multifd(MULTIFD_CONNECTIONS)),
            Self::QemuPostcopy => Some(QemuMigrationMode::Postcopy),
            Self::QemuPreempt => Some(QemuMigrationMode::PostcopyPreempt),
            _ => None,
        }
    }

    /// Whether the guest runs at the destination before its memory is there.
    pub fn is_postcopy(self) -> bool {
        matches!(
            self,
            Self::HikkoshiPostcopy | Self::HikkoshiHybrid | Self::QemuPostcopy | Self::QemuPreempt
        )
    }

    /// Its name in filters and tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::HikkoshiPrecopy => "hikkoshi-precopy",
            Self::HikkoshiPostcopy => "hikkoshi-postcopy",
            Self::HikkoshiHybrid => "hikkoshi-hybrid",
            Self::QemuPrecopy => "qemu-precopy",
            Self::QemuMultifd => "qemu-multifd",
            Self::QemuPostcopy => "qemu-postcopy",
            Self::QemuPreempt => "qemu-preempt",
        }
    }
}

/// One thing to measure.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
pub struct Case {
    /// Over what.
    pub line: LineKind,
    /// What the guest does.
    pub load: Load,
    /// Who moves it.
    pub system: System,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.line, self.load, self.system.name())
    }
}

/// Everything to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The cases, those of a line together.
    pub cases: Vec<Case>,
    rounds: u32,
}

impl Plan {
    /// What `args` ask for.
    ///
    /// # Errors
    /// When that is nothing.
    pub fn new(args: &Args) -> Result<Self, BenchError> {
        let all: Vec<_> = LineKind::ALL
            .into_iter()
            .flat_map(cases_of)
            .filter(|case| !args.quick || is_quick(case))
            .collect();
        let cases: Vec<_> = all
            .iter()
            .copied()
            .filter(|case| wanted(&args.only, &case.to_string()))
            .collect();
        if cases.is_empty() {
            let list: Vec<_> = all.iter().map(|case| format!("  {case}")).collect();
            return Err(BenchError::NothingToDo(list.join("\n")));
        }
        let rounds = if args.quick { 1 } else { args.rounds };
        Ok(Self { cases, rounds })
    }

    /// Every run, in rounds. What does not converge says the same every time, and is run once.
    pub fn turns(&self) -> impl Iterator<Item = (u32, &Case)> {
        (0..self.rounds).flat_map(move |round| {
            self.cases
                .iter()
                .filter(move |case| round == 0 || case.load != Load::Endless)
                .map(move |case| (round, case))
        })
    }
}

fn cases_of(line: LineKind) -> impl Iterator<Item = Case> {
    use System::{
        HikkoshiHybrid, HikkoshiPostcopy, HikkoshiPrecopy, QemuMultifd, QemuPostcopy, QemuPrecopy,
        QemuPreempt,
    };
    let busy = [HikkoshiHybrid, QemuPreempt, HikkoshiPostcopy, QemuPostcopy];
    let paced = [HikkoshiPrecopy, QemuPrecopy, HikkoshiHybrid, QemuMultifd];
    let endless = [HikkoshiPrecopy, QemuPrecopy, QemuMultifd];
    [
        (Load::Busy, &busy[..]),
        (Load::paced(line), &paced),
        (Load::Endless, &endless),
    ]
    .into_iter()
    .flat_map(move |(load, systems)| {
        systems
            .iter()
            .map(move |&system| Case { line, load, system })
    })
    .collect::<Vec<_>>()
    .into_iter()
}

fn is_quick(case: &Case) -> bool {
    case.line != LineKind::Loopback && case.load != Load::Endless
}

fn wanted(only: &[String], label: &str) -> bool {
    let parts: Vec<_> = label.split(['/', '-']).collect();
    only.iter().all(|words| {
        words.split(',').any(|word| {
            word == label || label.split('/').any(|p| p == word) || parts.contains(&word)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn plan(words: &[&str]) -> Result<Plan, BenchError> {
        Plan::new(&Args::parse_from(
            std::iter::once("bench").chain(words.iter().copied()),
        ))
    }

    #[test]
    fn systems_take_turns() {
        let plan = plan(&["--only", "1gbit", "--only", "busy", "--rounds", "2"]).unwrap();
        let turns: Vec<_> = plan.turns().collect();
        assert_eq!(turns.len(), 8);
        let (first, second) = turns.split_at(4);
        assert!(first.iter().zip(second).all(|(a, b)| a.1 == b.1));
        assert!(first.iter().all(|turn| turn.0 == 0) && second.iter().all(|turn| turn.0 == 1));
    }

    #[test]
    fn filters_are_words_not_parts_of_words() {
        let plan = plan(&["--only", "1gbit", "--only", "hybrid,preempt"]).unwrap();
        assert!(plan.cases.iter().all(|case| case.line == LineKind::Gbit(1)));
        assert_eq!(plan.cases.len(), 3, "{:?}", plan.cases);
        let text = super::Plan::new(&Args::parse_from(["bench", "--only", "gbit"]))
            .unwrap_err()
            .to_string();
        assert!(text.contains("loopback/endless/qemu-multifd"), "{text}");
    }

    #[test]
    fn what_does_not_converge_is_tried_once() {
        let plan = plan(&["--only", "endless", "--rounds", "5"]).unwrap();
        assert_eq!(plan.turns().count(), 9);
    }
}
