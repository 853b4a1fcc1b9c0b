//! Which steps are possible in a world.

use hikkoshi_handover::{DestinationAction, DestinationStage, SourceAction, SourceStage};

use super::steps::Step;
use super::world::{Flaw, Guest, LINKS, PAGES, World};

/// Everything that can happen in `world`.
pub(crate) fn possible(world: &World, steps: &mut Vec<Step>) {
    peaceful_steps(world, steps);
    for page in 0..PAGES {
        if may_write(world, page) {
            steps.push(Step::Write(page));
        }
    }
    if may_switch(world) && !steps.contains(&Step::Switch) {
        steps.push(Step::Switch);
    }
    if world.faults > 0 {
        faults(world, steps);
        wishes(world, steps);
    }
}

fn faults(world: &World, steps: &mut Vec<Step>) {
    // When the source checks the link: messages that it has not received by then are lost.
    let held = world.links.back().filter(|link| link.source_holds);
    let looks = world
        .source
        .engine
        .as_ref()
        .is_some_and(|e| e.pending.is_empty());
    if looks && held.is_some_and(|link| link.destination_holds) {
        steps.push(Step::SourceLosesLink);
    }
    let pending = world.destination.engine.as_ref().map(|e| e.pending.front());
    let looks = matches!(pending, Some(None | Some(DestinationAction::ResumeGuest)));
    if looks
        && world
            .links
            .iter()
            .any(|l| l.accepted && l.source_holds && l.destination_holds)
    {
        steps.push(Step::DestinationLosesLink);
    }
    match &world.source.engine {
        Some(engine) => {
            steps.push(Step::KillSource);
            match engine.pending.front() {
                Some(SourceAction::Record(_)) => steps.push(Step::SourceRecordFails),
                Some(SourceAction::ResumeGuest) if world.source.guest == Guest::Paused => {
                    steps.push(Step::ResumeFails);
                }
                _ => {}
            }
        }
        None if world.source.guard && !world.source.closed => steps.push(Step::KillGuard),
        None => {}
    }
    if let Some(engine) = &world.destination.engine {
        steps.push(Step::KillDestination);
        match engine.pending.front() {
            Some(DestinationAction::Record(_)) => steps.push(Step::DestinationRecordFails),
            Some(DestinationAction::ResumeGuest) if world.destination.guest == Guest::Paused => {
                // Only who has loaded it knows.
                if engine.loaded {
                    steps.push(Step::GuestNeverRuns);
                }
                steps.extend([Step::GuestMayRun(false), Step::GuestMayRun(true)]);
            }
            _ => {}
        }
    }
    // What becomes of it once all of it is there is its own matter.
    let machine = world.destination.engine.as_ref().map(|e| e.machine.stage());
    let whole =
        [Some(world.destination.stage), machine].contains(&Some(DestinationStage::Complete));
    if world.destination.guest != Guest::Absent && !whole {
        steps.push(Step::GuestEnds);
        if world.destination.guest == Guest::Running {
            steps.push(Step::GuestShutsDown);
        }
    }
}

fn wishes(world: &World, steps: &mut Vec<Step>) {
    if world.cancelled {
        return;
    }
    if world
        .source
        .engine
        .as_ref()
        .is_some_and(|e| e.pending.is_empty())
    {
        steps.push(Step::CancelSource);
    }
    if let Some(engine) = world
        .destination
        .engine
        .as_ref()
        .filter(|e| e.pending.is_empty())
    {
        steps.push(Step::CancelDestination);
        if engine.machine.stage() != DestinationStage::Receiving {
            steps.push(Step::GiveUpDestination);
        }
    }
    if world.flaw == Some(Flaw::GiveUpRashly) && may_give_up(world) {
        steps.push(Step::GiveUpSource);
    }
}

fn may_give_up(world: &World) -> bool {
    let source = &world.source;
    matches!(
        source.stage,
        SourceStage::Committed | SourceStage::HandedOver
    ) && source.engine.as_ref().is_some_and(|e| e.pending.is_empty())
}

/// The next step without faults and user actions.
pub(crate) fn peaceful(world: &World) -> Option<Step> {
    let mut steps = Vec::new();
    peaceful_steps(world, &mut steps);
    steps.first().copied()
}

fn peaceful_steps(world: &World, steps: &mut Vec<Step>) {
    let source = world.source.engine.as_ref();
    let destination = world.destination.engine.as_ref();
    let source_idle = source.is_some_and(|e| e.pending.is_empty());
    let destination_idle = destination.is_some_and(|e| e.pending.is_empty());
    if source.is_some() && !source_idle {
        steps.push(Step::SourceActs);
    }
    if may_give_up(world) && world.is_lost_at_destination() {
        steps.push(Step::GiveUpSource);
    }
    let runs =
        destination.is_some_and(|e| e.pending.front() == Some(&DestinationAction::ResumeGuest));
    let knocked = world
        .links
        .iter()
        .any(|link| !link.accepted && link.destination_holds);
    let met = world
        .links
        .iter()
        .find(|link| link.accepted && link.destination_holds);
    let keeps_old = world.flaw == Some(Flaw::KeepOldLink) && met.is_some();
    if knocked && (destination_idle || runs) && !keeps_old {
        steps.push(Step::AcceptLink);
    }
    if destination.is_some() && !destination_idle {
        steps.push(Step::DestinationActs);
    }
    if world.destination.ended && destination_idle && notices_guest_end(world) {
        steps.push(Step::NoticesGuestEnd);
    }
    if let Some(link) = world.links.back().filter(|link| link.source_holds) {
        if source_idle && !link.to_source.is_empty() {
            steps.push(Step::SourceReceives);
        }
        if let Some(engine) = source.filter(|_| source_idle) {
            for page in 0..PAGES {
                let before = !engine.switched && engine.machine.stage() == SourceStage::Owned;
                if (engine.serving && engine.owed[page]) || (before && engine.dirty[page]) {
                    steps.push(Step::SendPage(page));
                }
            }
            if may_switch(world) && !engine.dirty.contains(&true) {
                steps.push(Step::Switch);
            }
        }
        // The destination has closed the link, which the source will notice.
        if !link.destination_holds && source_idle {
            steps.push(Step::SourceLosesLink);
        }
    }
    if let Some(link) = met {
        if destination_idle && !link.pages.is_empty() {
            steps.push(Step::PageArrives);
        }
        if destination_idle && !link.to_destination.is_empty() {
            steps.push(Step::DestinationReceives);
        }
        if !link.source_holds && destination_idle && !keeps_old {
            steps.push(Step::DestinationLosesLink);
        }
    }
    let guarded = world.source.guard && !world.source.closed;
    if source.is_none() && guarded {
        steps.push(Step::GuardActs);
    }
    if source.is_none() && !guarded && !world.source.closed {
        steps.push(Step::RestartSource);
    }
    // A migration without a record is not resumed.
    let recorded = world.destination.stage != DestinationStage::Receiving;
    if destination.is_none() && recorded && !world.destination.closed {
        steps.push(Step::RestartDestination);
    }
    let calls = source.is_some_and(|e| e.waiting && e.pending.is_empty());
    if calls && destination.is_some() && recorded && world.links.len() < LINKS {
        steps.push(Step::Connect);
    }
}

/// Whether the engine has still to deal with the end of its guest.
fn notices_guest_end(world: &World) -> bool {
    matches!(
        world.destination.engine.as_ref().map(|e| e.machine.stage()),
        Some(DestinationStage::Ready | DestinationStage::Running)
    )
}

fn may_write(world: &World, page: usize) -> bool {
    match (world.source.guest, world.destination.guest) {
        (Guest::Running, _) => world.truth[page] == 0,
        (_, Guest::Running) => world.destination.ram[page].is_some() && world.truth[page] < 2,
        _ => false,
    }
}

/// Everything sent has arrived: a page under way would come after its hole.
fn may_switch(world: &World) -> bool {
    world
        .links
        .back()
        .is_some_and(|link| link.source_holds && link.pages.is_empty())
        && world.source.engine.as_ref().is_some_and(|e| {
            !e.switched && e.pending.is_empty() && e.machine.stage() == SourceStage::Owned
        })
        && world.source.guest == Guest::Running
}
