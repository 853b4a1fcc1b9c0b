//! The model check: every order of messages, losses and crashes.
//!
//! `world.rs` is the state: two hosts, the links between them, and a guest of two
//! pages, driven by the machines of `hikkoshi_handover`. `possible_steps.rs` lists the
//! steps that are possible in a state, `steps.rs` takes one (`source_host.rs`,
//! `destination_host.rs`). The check is exhaustive within a budget of faults: lost
//! links, killed engines, records that cannot be written, guests that fail.

mod arbitrary_messages;
mod destination_host;
mod docs;
mod fuzzing;
mod possible_steps;
mod source_host;
mod steps;
mod world;

use stateright::{Checker, HasDiscoveries, Model, Property};

use hikkoshi_handover::{DestinationStage, SourceStage};
use steps::Step;
use world::{Flaw, Guest, World};

/// All states that one migration can reach.
struct Migration {
    /// The number of faults.
    faults: u8,
    /// A deliberate error in the machines.
    flaw: Option<Flaw>,
}

impl Model for Migration {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(self.faults, self.flaw)]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        possible_steps::possible(world, steps);
    }

    fn next_state(&self, world: &World, step: Step) -> Option<World> {
        let mut next = world.clone();
        steps::take(&mut next, step);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("never two runnable guests", |_, world: &World| {
                !(world.source.guest == Guest::Running && world.destination.guest == Guest::Running)
            }),
            Property::always("never a page lost", |_, world: &World| world.is_sound()),
            Property::always(
                "never zero guests without a way back",
                |_, world: &World| world.is_recoverable(),
            ),
            // These show that the check reaches the interesting states.
            Property::sometimes("the migration completes", |_, world: &World| {
                world.source.stage == SourceStage::Done
                    && world.destination.stage == DestinationStage::Complete
            }),
            Property::sometimes(
                "the migration completes in spite of faults",
                |_, world: &World| {
                    world.faults == 0 && world.destination.stage == DestinationStage::Complete
                },
            ),
            Property::sometimes(
                "the guest runs on neither side for a while",
                |_, world: &World| {
                    world.source.stage == SourceStage::Committed
                        && world.destination.stage == DestinationStage::Ready
                        && world.links.is_empty()
                },
            ),
            Property::sometimes("the source takes the guest back", |_, world: &World| {
                world.taken_back && world.source.guest == Guest::Running
            }),
            Property::sometimes("the guest writes on both sides", |_, world: &World| {
                world.truth == [2, 2]
            }),
        ]
    }
}

/// The names of the properties that the check decides, until it decides `what`.
fn discoveries(faults: u8, flaw: Option<Flaw>, what: &'static str) -> Vec<&'static str> {
    let checker = Migration { faults, flaw }
        .checker()
        .finish_when(HasDiscoveries::AllOf([what].into()))
        .threads(2)
        .spawn_bfs()
        .join();
    let mut found: Vec<_> = checker.discoveries().into_keys().collect();
    found.sort_unstable();
    found
}

/// Checks all states with this number of faults, and returns how many there are.
fn explore(faults: u8) -> usize {
    let flaw = None;
    let checker = Migration { faults, flaw }
        .checker()
        .threads(2)
        .spawn_bfs()
        .join();
    checker.assert_properties();
    checker.unique_state_count()
}

#[test]
fn one_guest_and_every_page_with_two_faults() {
    // With fewer states, some possible step would be missing.
    let worlds = explore(2);
    assert!(worlds > 500_000, "{worlds}");
}

#[test]
#[ignore = "takes minutes, and gigabytes of memory"]
fn one_guest_and_every_page_with_three_faults() {
    println!("{} worlds", explore(3));
}

#[test]
fn the_check_finds_each_flaw() {
    for (flaw, what) in [
        (Flaw::ResumeWhenLost, "never two runnable guests"),
        (Flaw::CommitUnrecorded, "never two runnable guests"),
        (Flaw::RunUnrecorded, "never two runnable guests"),
        (
            Flaw::DeclineUnrecorded,
            "never zero guests without a way back",
        ),
        (
            Flaw::ForgetWhenReady,
            "never zero guests without a way back",
        ),
        (Flaw::KeepStalePages, "never a page lost"),
        (Flaw::TrustOldOwed, "never zero guests without a way back"),
        (Flaw::ForgetDeclined, "never zero guests without a way back"),
        (Flaw::ForgetPaused, "never zero guests without a way back"),
        (Flaw::DeclineWhenUnsure, "never two runnable guests"),
        (Flaw::CommitAnyway, "never two runnable guests"),
        (Flaw::GiveUpRashly, "never two runnable guests"),
        (Flaw::KeepOldLink, "never zero guests without a way back"),
        (Flaw::DeafWhenGone, "never zero guests without a way back"),
    ] {
        let found = discoveries(2, Some(flaw), what);
        assert!(found.contains(&what), "{flaw:?}: {found:?}");
    }
}
