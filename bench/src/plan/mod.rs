//! What is measured: lines, workloads, systems, and in which order.

mod line;
mod load;
mod system;
mod variant;

use serde::Serialize;
use std::fmt;

pub use line::LineKind;
pub use load::{
    DISK_ARENA_MIB, Kind, Load, RAM_MIB, REPORT_MS, SLOW_US, WEB_FILE_BYTES, WEB_FILES,
    WORKING_SET_MIB,
};
pub use system::System;
pub use variant::Variant;

use crate::args::Args;
use crate::error::BenchError;

/// One thing to measure.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
pub struct Case {
    /// Over what.
    pub line: LineKind,
    /// What the guest does.
    pub load: Load,
    /// Who moves it.
    pub system: System,
    /// hikkoshi's options.
    pub variant: Variant,
    /// How often, unless said otherwise.
    pub rounds: u32,
}

impl Case {
    /// The system with its options, for tables.
    pub fn who(&self) -> String {
        match self.variant {
            Variant::Plain => self.system.name().to_owned(),
            variant => format!("{}/{variant}", self.system.name()),
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.line, self.load, self.who())
    }
}

/// Everything to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The cases, those of a line together.
    pub cases: Vec<Case>,
}

impl Plan {
    /// What `args` ask for.
    ///
    /// # Errors
    /// When that is nothing.
    pub fn new(args: &Args) -> Result<Self, BenchError> {
        let all: Vec<_> = all()
            .into_iter()
            .filter(|case| !args.quick || is_quick(case))
            .collect();
        let cases: Vec<_> = all
            .iter()
            .copied()
            .filter(|case| wanted(&args.only, &case.to_string()))
            .map(|case| Case {
                rounds: match (args.quick, args.rounds) {
                    // What does not converge says the same every time.
                    _ if case.load == Load::Endless => 1,
                    (_, Some(rounds)) => rounds,
                    (true, None) => 1,
                    (false, None) => case.rounds,
                },
                ..case
            })
            .collect();
        if cases.is_empty() {
            let list: Vec<_> = all.iter().map(|case| format!("  {case}")).collect();
            return Err(BenchError::NothingToDo(list.join("\n")));
        }
        Ok(Self { cases })
    }

    /// Every run, in rounds.
    pub fn turns(&self) -> impl Iterator<Item = (u32, &Case)> {
        let rounds = self.cases.iter().map(|case| case.rounds).max().unwrap_or(0);
        (0..rounds).flat_map(move |round| {
            self.cases
                .iter()
                .filter(move |case| round < case.rounds)
                .map(move |case| (round, case))
        })
    }
}

/// Every case, those that are compared with one another side by side.
fn all() -> Vec<Case> {
    use System::{
        HikkoshiHybrid, HikkoshiPostcopy, HikkoshiPrecopy, QemuMultifd, QemuPostcopy, QemuPrecopy,
        QemuPreempt,
    };
    use Variant::{
        Links, NoBound, NoDrain, NoFollow, NoHotFirst, NoPriority, NoReadAhead, Plain, Poll,
        ReadAhead8, Tls,
    };
    const UNSHAPED: LineKind = LineKind::Loopback;
    const TEN: LineKind = LineKind::Gbit(10);
    const ONE: LineKind = LineKind::Gbit(1);
    const ONE_A_FLOW: LineKind = LineKind::GbitPerFlow(1);

    let mut cases = Vec::new();
    let mut add = |line, load, rounds, who: &[(System, Variant)]| {
        cases.extend(who.iter().map(|&(system, variant)| Case {
            line,
            load,
            system,
            variant,
            rounds,
        }));
    };
    for line in [UNSHAPED, TEN, ONE] {
        add(
            line,
            Load::Busy,
            5,
            &[HikkoshiHybrid, QemuPreempt, HikkoshiPostcopy, QemuPostcopy]
                .map(|system| (system, Plain)),
        );
        let paced = [HikkoshiPrecopy, QemuPrecopy, HikkoshiHybrid, QemuMultifd];
        add(
            line,
            Load::paced(line),
            5,
            &paced.map(|system| (system, Plain)),
        );
    }
    let endless = [HikkoshiPrecopy, QemuPrecopy, QemuMultifd];
    add(
        ONE,
        Load::Endless,
        1,
        &endless.map(|system| (system, Plain)),
    );
    for line in [TEN, ONE] {
        add(
            line,
            Load::Huge,
            5,
            &[(HikkoshiHybrid, Plain), (QemuPreempt, Plain)],
        );
        let ahead = [Plain, NoReadAhead].map(|variant| (HikkoshiPostcopy, variant));
        add(line, Load::Sequential, 5, &ahead);
        add(line, Load::Sequential, 3, &[(HikkoshiPostcopy, ReadAhead8)]);
        let fill = [
            (HikkoshiPostcopy, Plain),
            (HikkoshiPostcopy, NoBound),
            (HikkoshiPrecopy, Plain),
        ];
        add(line, Load::Fill, 5, &fill);
    }
    let scanners = [
        (HikkoshiPostcopy, ReadAhead8),
        (HikkoshiPostcopy, Plain),
        (QemuPreempt, Plain),
    ];
    add(TEN, Load::Scan, 2, &scanners);
    // The plain ones are among those above, or beside these.
    let random = [NoReadAhead, Poll, NoPriority, Links(1), Links(2), Links(4)];
    add(
        TEN,
        Load::Busy,
        3,
        &random.map(|variant| (HikkoshiHybrid, variant)),
    );
    let encrypted = [(HikkoshiHybrid, Tls), (HikkoshiPostcopy, Tls)];
    add(TEN, Load::Busy, 3, &encrypted);
    add(UNSHAPED, Load::Busy, 3, &encrypted);
    add(TEN, Load::Fill, 3, &encrypted[1..]);
    let hotspot = [Plain, NoHotFirst, NoFollow, NoReadAhead];
    add(
        TEN,
        Load::Hotspot,
        3,
        &hotspot.map(|variant| (HikkoshiHybrid, variant)),
    );
    let links = [Links(1), Links(2), Links(4)];
    add(
        UNSHAPED,
        Load::Fill,
        3,
        &links.map(|variant| (HikkoshiPostcopy, variant)),
    );
    add(
        UNSHAPED,
        Load::paced(UNSHAPED),
        3,
        &links.map(|variant| (HikkoshiPrecopy, variant)),
    );
    for system in [HikkoshiPostcopy, HikkoshiPrecopy] {
        let links = links.map(|variant| (system, variant));
        add(ONE_A_FLOW, Load::Fill, 3, &links);
    }
    for load in [Load::Disk20, Load::Disk100] {
        let precopy = [
            (HikkoshiPrecopy, Plain),
            (HikkoshiPrecopy, NoDrain),
            (QemuPrecopy, Plain),
        ];
        add(TEN, load, 3, &precopy);
    }
    let servers = [HikkoshiHybrid, QemuPreempt, HikkoshiPostcopy, QemuPrecopy];
    add(ONE, Load::Web, 1, &servers.map(|system| (system, Plain)));
    cases
}

fn is_quick(case: &Case) -> bool {
    case.line != LineKind::Loopback
        && case.variant == Variant::Plain
        && matches!(case.load, Load::Busy | Load::Paced(_))
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
        let plan = plan(&[
            "--only",
            "1gbit",
            "--only",
            "hybrid,preempt",
            "--only",
            "busy,paced",
        ]);
        let plan = plan.unwrap();
        assert!(plan.cases.iter().all(|case| case.line == LineKind::Gbit(1)));
        assert_eq!(plan.cases.len(), 3, "{:?}", plan.cases);
        let text = super::Plan::new(&Args::parse_from(["bench", "--only", "gbit"]))
            .unwrap_err()
            .to_string();
        assert!(text.contains("1gbit/endless/qemu-multifd"), "{text}");
    }

    #[test]
    fn cases_have_rounds_of_their_own_unless_told_otherwise() {
        let own = plan(&["--only", "1gbit", "--only", "busy"]).unwrap();
        let rounds: Vec<_> = own.cases.iter().map(|case| case.rounds).collect();
        assert_eq!(rounds, [5, 5, 5, 5]);
        let one = plan(&["--rounds", "1"]).unwrap();
        assert_eq!(one.turns().count(), one.cases.len());
        let endless = plan(&["--only", "endless", "--rounds", "5"]).unwrap();
        assert_eq!(
            endless.turns().count(),
            3,
            "what does not converge is tried once"
        );
    }

    #[test]
    fn no_case_is_there_twice() {
        let labels: Vec<_> = all().iter().map(Case::to_string).collect();
        let mut unique = labels.clone();
        unique.sort();
        unique.dedup();
        assert_eq!(unique.len(), labels.len());
    }

    #[test]
    fn a_variant_is_what_hikkoshi_is_told() {
        assert!(Variant::Plain.migrate_words().is_empty());
        assert_eq!(Variant::Links(4).migrate_words(), ["--links", "4"]);
        assert_eq!(
            Variant::NoReadAhead.migrate_words(),
            ["--read-ahead", "off"]
        );
        assert_eq!(Variant::Poll.receive_words(), ["--poll"]);
        assert_eq!(Variant::NoDrain.migrate_words(), ["--no-drain"]);
        assert!(Variant::Tls.is_encrypted() && !Variant::Plain.is_encrypted());
    }
}
