//! What is measured: networks, workloads and systems, and their order.

mod case;
mod cases;
mod network;
mod system;
mod variant;
mod workload;

pub(crate) use case::Case;
pub(crate) use network::NetworkKind;
pub(crate) use system::System;
pub(crate) use variant::Variant;
pub(crate) use workload::{
    BACKGROUND_DELAY_MS, CLIENTS_PORT, DISK_ARENA_MIB, Kind, RAM_MIB, REPORT_MS, SLOW_US,
    WEB_FILE_BYTES, WEB_FILES, WORKING_SET_MIB, Workload,
};

use cases::{all, is_quick};

use crate::args::Args;
use crate::error::BenchError;

/// Rounds, unless the command line says something else.
const ROUNDS: u32 = 5;

/// Everything to measure.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// The cases, grouped by network.
    pub cases: Vec<Case>,
    /// How often each is measured, unless it runs once.
    rounds: u32,
}

impl Plan {
    /// The cases that `args` select.
    ///
    /// # Errors
    /// When no case matches.
    pub(crate) fn new(args: &Args) -> Result<Self, BenchError> {
        let all: Vec<_> = all()
            .into_iter()
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
        Ok(Self {
            cases,
            rounds: args.rounds.unwrap_or(if args.quick { 1 } else { ROUNDS }),
        })
    }

    /// Every run, round by round.
    pub(crate) fn turns(&self) -> impl Iterator<Item = (u32, &Case)> {
        (0..self.rounds).flat_map(|round| {
            self.cases
                .iter()
                .filter(move |case| round == 0 || !case.runs_once())
                .map(move |case| (round, case))
        })
    }
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
        assert_eq!(turns.len(), 16);
        let (first, second) = turns.split_at(8);
        assert!(first.iter().zip(second).all(|(a, b)| a.1 == b.1));
        assert!(first.iter().all(|turn| turn.0 == 0) && second.iter().all(|turn| turn.0 == 1));
    }

    #[test]
    fn filters_match_whole_words() {
        let plan = plan(&[
            "--only",
            "1gbit",
            "--only",
            "hybrid,preempt",
            "--only",
            "busy,paced",
        ]);
        let plan = plan.unwrap();
        assert!(
            plan.cases
                .iter()
                .all(|case| case.network == NetworkKind::Gbit(1))
        );
        // Of `busy` both, and hybrid by TLS and without compression; of `paced` and `private-paced`
        // hybrid.
        assert_eq!(plan.cases.len(), 6, "{:?}", plan.cases);
        let text = super::Plan::new(&Args::parse_from(["bench", "--only", "gbit"]))
            .unwrap_err()
            .to_string();
        assert!(text.contains("1gbit/endless/qemu-multifd"), "{text}");
    }

    #[test]
    fn a_case_has_five_rounds_unless_it_runs_once() {
        let turns = |words: &[&str]| {
            let plan = plan(words).unwrap();
            (plan.turns().count(), plan.cases.len())
        };
        assert_eq!(turns(&["--only", "1gbit", "--only", "busy"]), (40, 8));
        let ten = ["--only", "1gbit", "--only", "busy", "--rounds", "10"];
        assert_eq!(turns(&ten), (80, 8));
        for once in ["endless", "timeline", "nano-scan,preempt"] {
            let only = once.split(',').flat_map(|part| ["--only", part]);
            let words: Vec<_> = only.chain(["--rounds", "10"]).collect();
            let (turns, cases) = turns(&words);
            assert_eq!(turns, cases, "{once}");
        }
    }

    #[test]
    fn every_case_is_unique() {
        let labels: Vec<_> = all().iter().map(Case::to_string).collect();
        let mut unique = labels.clone();
        unique.sort();
        unique.dedup();
        assert_eq!(unique.len(), labels.len());
    }

    #[test]
    fn only_hikkoshi_uses_the_relay_and_only_nano_guests_have_no_asynchronous_faults() {
        for case in all() {
            let relayed = matches!(case.network, NetworkKind::RoundTrip(_));
            assert!(!relayed || case.system.hikkoshi_mode().is_some(), "{case}");
            assert!(case.async_faults || case.workload.is_nano(), "{case}");
        }
        let nano = plan(&["--only", "nano", "--only", "async"]).unwrap();
        assert!(nano.cases.iter().all(|case| !case.async_faults));
    }

    #[test]
    fn domains_are_moved_by_libvirt_and_by_hikkoshi() {
        let plan = plan(&["--only", "libvirt"]).unwrap();
        let names: Vec<_> = plan.cases.iter().map(|case| case.system.name()).collect();
        assert_eq!(
            names,
            [
                "virsh-precopy",
                "hikkoshi-precopy",
                "virsh-postcopy",
                "hikkoshi-hybrid",
                "hikkoshi-postcopy"
            ]
        );
        for case in all() {
            let by_virsh = case.system.virsh_options().is_some();
            assert!(!by_virsh || case.workload == Workload::Domain, "{case}");
        }
    }

    #[test]
    fn a_variant_becomes_options() {
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
