//! The tables in `docs/protocol.md` are the machines' own.

use std::fmt::Write as _;

use hikkoshi_handover::{
    Destination, DestinationEvent, DestinationStage, Source, SourceEvent, SourceStage,
};

const PAGE: &str = include_str!("../../../../docs/protocol.md");

/// One line for each stage and event: what is done, and the stage after it.
fn table<S: Copy + std::fmt::Debug, E: Copy + std::fmt::Debug, A: std::fmt::Debug>(
    stages: &[S],
    events: &[E],
    on: impl Fn(S, E) -> (S, Vec<A>),
) -> String {
    let mut table = String::from("| stage | event | next stage | actions |\n|---|---|---|---|\n");
    for &stage in stages {
        for &event in events {
            let (next, actions) = on(stage, event);
            let actions: Vec<_> = actions.iter().map(|a| format!("{a:?}")).collect();
            let _ = writeln!(
                table,
                "| {stage:?} | {event:?} | {next:?} | {} |",
                actions.join(", ")
            );
        }
    }
    table
}

fn assert_in_docs(heading: &str, table: &str) {
    let said = PAGE
        .split_once(&format!("### {heading}\n\n"))
        .map(|(_, rest)| rest.split("\n\n").next().unwrap_or_default());
    let said = said.unwrap_or_else(|| panic!("docs/protocol.md has no heading '### {heading}'"));
    assert_eq!(
        said.trim(),
        table.trim(),
        "docs/protocol.md, '{heading}': the table should be\n{table}"
    );
}

#[test]
fn the_documented_tables_are_the_machines() {
    let source = table(&SourceStage::ALL, &SourceEvent::ALL, |stage, event| {
        let mut machine = Source::new(stage);
        let actions = machine.on(event).to_vec();
        (machine.stage(), actions)
    });
    assert_in_docs("The source's state machine", &source);
    let destination = table(
        &DestinationStage::ALL,
        &DestinationEvent::ALL,
        |stage, event| {
            let mut machine = Destination::new(stage);
            let actions = machine.on(event).to_vec();
            (machine.stage(), actions)
        },
    );
    assert_in_docs("The destination's state machine", &destination);
}
