//! What can happen next, and what comes of it.

use hikkoshi_handover::{
    DestinationAction, DestinationEvent, DestinationStage, SourceAction, SourceEvent, SourceStage,
};

use super::world::{
    DestinationEngine, Flaw, Guest, LINKS, Link, PAGES, SourceEngine, ToDestination, ToSource,
    World,
};

/// One thing that happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    /// The guest writes a page, wherever it runs.
    Write(usize),
    /// The source sends a page, before or after the switch.
    SendPage(usize),
    /// A page arrives.
    PageArrives,
    /// The source stops its guest and sends what is needed to run it.
    Switch,
    /// The source does the next thing its machine said.
    SourceDoes,
    /// The destination does the next thing its machine said.
    DestinationDoes,
    /// A message arrives at the destination.
    DestinationHears,
    /// A message arrives at the source.
    SourceHears,
    /// The destination turns to a new connection, and lets the old one go.
    Meet,
    /// The source notices, rightly or not, that the connection is gone.
    SourceLoses,
    /// The destination does.
    DestinationLoses,
    /// `kill -9` of the source's engine.
    KillSource,
    /// `kill -9` of the destination's engine.
    KillDestination,
    /// The guard sees to what its engine has left.
    GuardActs,
    /// `kill -9` of the guard, before it came to that.
    KillGuard,
    /// The source's engine is started again.
    RestartSource,
    /// The destination's engine is started again.
    RestartDestination,
    /// The source connects again.
    Connect,
    /// What the source is about to record cannot be.
    SourceRecordFails,
    /// What the destination is about to record cannot be.
    DestinationRecordFails,
    /// The source's guest cannot be made to run again.
    ResumeFails,
    /// The destination's guest cannot be made to run, and did not run for sure.
    NeverRuns,
    /// It may have run, or not; whether it does.
    MayRun(bool),
    /// The destination's guest ends, with its memory.
    GuestEnds,
    /// The destination's guest, which runs, shuts itself down.
    GuestShutsDown,
    /// The destination sees that.
    SeesTheEnd,
    /// Somebody at the source wants it stopped.
    CancelSource,
    /// Somebody at the destination wants it stopped.
    CancelDestination,
    /// Somebody at the source gives it up, rightly.
    GiveUpSource,
    /// Somebody at the destination gives it up: before the guest was run, or
    /// with it.
    GiveUpDestination,
}

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
    // When it looks: what was said and not heard by then is lost.
    let held = world.links.back().filter(|link| link.source_holds);
    let looks = world
        .source
        .engine
        .as_ref()
        .is_some_and(|e| e.todo.is_empty());
    if looks && held.is_some_and(|link| link.destination_holds) {
        steps.push(Step::SourceLoses);
    }
    let todo = world.destination.engine.as_ref().map(|e| e.todo.front());
    let looks = matches!(todo, Some(None | Some(DestinationAction::ResumeGuest)));
    if looks
        && world
            .links
            .iter()
            .any(|l| l.met && l.source_holds && l.destination_holds)
    {
        steps.push(Step::DestinationLoses);
    }
    match &world.source.engine {
        Some(engine) => {
            steps.push(Step::KillSource);
            match engine.todo.front() {
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
        match engine.todo.front() {
            Some(DestinationAction::Record(_)) => steps.push(Step::DestinationRecordFails),
            Some(DestinationAction::ResumeGuest) if world.destination.guest == Guest::Paused => {
                // Only who has loaded it knows.
                if engine.loaded {
                    steps.push(Step::NeverRuns);
                }
                steps.extend([Step::MayRun(false), Step::MayRun(true)]);
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
        .is_some_and(|e| e.todo.is_empty())
    {
        steps.push(Step::CancelSource);
    }
    if let Some(engine) = world
        .destination
        .engine
        .as_ref()
        .filter(|e| e.todo.is_empty())
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
    ) && source.engine.as_ref().is_some_and(|e| e.todo.is_empty())
}

/// The next thing that happens when nobody disturbs.
pub(crate) fn peaceful(world: &World) -> Option<Step> {
    let mut steps = Vec::new();
    peaceful_steps(world, &mut steps);
    steps.first().copied()
}

fn peaceful_steps(world: &World, steps: &mut Vec<Step>) {
    let source = world.source.engine.as_ref();
    let destination = world.destination.engine.as_ref();
    let source_idle = source.is_some_and(|e| e.todo.is_empty());
    let destination_idle = destination.is_some_and(|e| e.todo.is_empty());
    if source.is_some() && !source_idle {
        steps.push(Step::SourceDoes);
    }
    if may_give_up(world) && world.is_lost_there() {
        steps.push(Step::GiveUpSource);
    }
    let runs = destination.is_some_and(|e| e.todo.front() == Some(&DestinationAction::ResumeGuest));
    let knocked = world
        .links
        .iter()
        .any(|link| !link.met && link.destination_holds);
    let met = world
        .links
        .iter()
        .find(|link| link.met && link.destination_holds);
    let keeps_old = world.flaw == Some(Flaw::KeepOldLink) && met.is_some();
    if knocked && (destination_idle || runs) && !keeps_old {
        steps.push(Step::Meet);
    }
    if destination.is_some() && !destination_idle {
        steps.push(Step::DestinationDoes);
    }
    if world.destination.ended && destination_idle && sees_the_end(world) {
        steps.push(Step::SeesTheEnd);
    }
    if let Some(link) = world.links.back().filter(|link| link.source_holds) {
        if source_idle && !link.to_source.is_empty() {
            steps.push(Step::SourceHears);
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
        // The other side has let go: it will be noticed.
        if !link.destination_holds && source_idle {
            steps.push(Step::SourceLoses);
        }
    }
    if let Some(link) = met {
        if destination_idle && !link.pages.is_empty() {
            steps.push(Step::PageArrives);
        }
        if destination_idle && !link.to_destination.is_empty() {
            steps.push(Step::DestinationHears);
        }
        if !link.source_holds && destination_idle && !keeps_old {
            steps.push(Step::DestinationLoses);
        }
    }
    let guarded = world.source.guard && !world.source.closed;
    if source.is_none() && guarded {
        steps.push(Step::GuardActs);
    }
    if source.is_none() && !guarded && !world.source.closed {
        steps.push(Step::RestartSource);
    }
    // What was not recorded is not taken up again.
    let recorded = world.destination.stage != DestinationStage::Receiving;
    if destination.is_none() && recorded && !world.destination.closed {
        steps.push(Step::RestartDestination);
    }
    let calls = source.is_some_and(|e| e.waiting && e.todo.is_empty());
    if calls && destination.is_some() && recorded && world.links.len() < LINKS {
        steps.push(Step::Connect);
    }
}

/// Whether the engine has still to deal with the end of its guest.
fn sees_the_end(world: &World) -> bool {
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
            !e.switched && e.todo.is_empty() && e.machine.stage() == SourceStage::Owned
        })
        && world.source.guest == Guest::Running
}

/// Lets `step` happen.
pub(crate) fn take(world: &mut World, step: Step) {
    match step {
        Step::Write(page) => write(world, page),
        Step::SendPage(page) => send_page(world, page),
        Step::PageArrives => page_arrives(world),
        Step::Switch => switch(world),
        Step::SourceDoes => source_does(world),
        Step::DestinationDoes => destination_does(world),
        Step::DestinationHears => destination_hears(world),
        Step::SourceHears => source_hears(world),
        Step::Meet => meet(world),
        Step::SourceLoses => {
            if world
                .source_link()
                .is_some_and(|link| link.destination_holds)
            {
                world.faults -= 1;
            }
            source_lets_go(world);
            world.tell_source(SourceEvent::LinkLost);
        }
        Step::DestinationLoses => {
            if world
                .destination_link()
                .is_some_and(|link| link.source_holds)
            {
                world.faults -= 1;
            }
            destination_lets_go(world);
            world.tell_destination(DestinationEvent::LinkLost);
        }
        Step::KillSource => {
            world.faults -= 1;
            source_ends(world);
        }
        Step::KillDestination => {
            world.faults -= 1;
            destination_ends(world);
        }
        Step::GuardActs => {
            world.source.guard = false;
            if world.source.stage == SourceStage::Owned {
                world.source.guest = Guest::Running;
                world.source.closed = true;
            }
        }
        Step::KillGuard => {
            world.faults -= 1;
            world.source.guard = false;
        }
        Step::RestartSource => {
            world.source.engine = Some(SourceEngine::new(world.source.stage));
            world.tell_source(SourceEvent::Restarted);
        }
        Step::RestartDestination => restart_destination(world),
        Step::Connect => connect(world),
        Step::SourceRecordFails => {
            world.faults -= 1;
            source_record_fails(world);
        }
        Step::DestinationRecordFails => {
            world.faults -= 1;
            say_to_source(world, ToSource::Failed);
            if world.destination.stage == DestinationStage::Receiving {
                drop_guest(world);
            }
            destination_ends(world);
        }
        Step::ResumeFails => {
            world.faults -= 1;
            if let Some(engine) = &mut world.source.engine {
                engine.todo.pop_front();
                if world.flaw != Some(Flaw::ForgetPaused) {
                    engine.todo.retain(|action| *action != SourceAction::Close);
                }
            }
        }
        Step::NeverRuns => {
            world.faults -= 1;
            never_ran(world);
        }
        Step::MayRun(does) => {
            world.faults -= 1;
            if does {
                world.destination.guest = Guest::Running;
            }
            if world.flaw == Some(Flaw::DeclineWhenUnsure) {
                return never_ran(world);
            }
            say_to_source(world, ToSource::Failed);
            destination_ends(world);
        }
        Step::GuestEnds => {
            world.faults -= 1;
            world.destination.guest = Guest::Absent;
            world.destination.ended = true;
            world.destination.ram = [None; PAGES];
        }
        Step::GuestShutsDown => {
            world.faults -= 1;
            world.destination.guest = Guest::Absent;
            world.destination.ended = true;
            // Who is not there to hear it takes it for lost.
            world.destination.shut_down = world.destination.engine.is_some();
            world.destination.ram = [None; PAGES];
        }
        Step::SeesTheEnd => {
            let runs = world.destination.engine.as_ref();
            let runs = runs.is_some_and(|e| e.machine.stage() == DestinationStage::Running);
            world.tell_destination(if world.destination.shut_down && runs {
                DestinationEvent::ShutDown
            } else {
                DestinationEvent::GuestFailed
            });
        }
        Step::CancelSource => {
            world.cancelled = true;
            world.tell_source(SourceEvent::Cancelled);
        }
        Step::CancelDestination => {
            world.cancelled = true;
            world.tell_destination(DestinationEvent::Cancelled);
        }
        Step::GiveUpSource => {
            world.cancelled = true;
            if world.flaw != Some(Flaw::GiveUpRashly) {
                // What it did there is lost, and nobody else's.
                world.truth = world.source.ram;
            }
            world.tell_source(SourceEvent::GivenUp);
        }
        Step::GiveUpDestination => {
            world.cancelled = true;
            world.given_up_there = true;
            world.tell_destination(DestinationEvent::GivenUp);
        }
    }
    world
        .links
        .retain(|link| link.source_holds || link.destination_holds);
}

fn never_ran(world: &mut World) {
    if let Some(engine) = &mut world.destination.engine {
        // Nothing behind it is done.
        engine.todo.clear();
    }
    world.tell_destination(DestinationEvent::GuestNeverRan);
}

fn source_lets_go(world: &mut World) {
    if let Some(link) = world.source_link() {
        link.source_holds = false;
        link.to_source.clear();
    }
}

fn destination_lets_go(world: &mut World) {
    if let Some(link) = world.destination_link() {
        link.destination_holds = false;
        link.to_destination.clear();
        link.pages.clear();
    }
    if let Some(engine) = &mut world.destination.engine {
        engine.committed_here = false;
    }
}

fn source_ends(world: &mut World) {
    world.source.engine = None;
    source_lets_go(world);
}

/// Also whoever has come and was not met is let go.
fn destination_ends(world: &mut World) {
    world.destination.engine = None;
    if world.destination.stage != DestinationStage::Complete {
        // Nobody knows any more.
        world.destination.shut_down = false;
    }
    for link in &mut world.links {
        link.destination_holds = false;
        link.to_destination.clear();
        link.pages.clear();
    }
}

fn restart_destination(world: &mut World) {
    let stage = world.destination.stage;
    world.destination.engine = Some(DestinationEngine::new(stage));
    let event = match stage {
        DestinationStage::Ready | DestinationStage::Running if world.destination.ended => {
            DestinationEvent::GuestFailed
        }
        _ => DestinationEvent::Restarted,
    };
    world.tell_destination(event);
    // Nobody is there yet, and whoever comes while the guest is made to run is
    // not sent away.
    if let Some(engine) = &mut world.destination.engine
        && engine.todo.front() == Some(&DestinationAction::ResumeGuest)
    {
        engine
            .todo
            .retain(|action| *action != DestinationAction::Wait);
    }
}

fn source_record_fails(world: &mut World) {
    if world.flaw == Some(Flaw::CommitAnyway) {
        if let Some(engine) = &mut world.source.engine {
            engine.todo.pop_front();
        }
        return;
    }
    if world.source.stage != SourceStage::Owned {
        return source_ends(world);
    }
    if let Some(engine) = &mut world.source.engine {
        let fresh = SourceEngine::new(SourceStage::Owned);
        engine.machine = fresh.machine;
        engine.todo.clear();
        // The engine takes its guest back, as for any other failure.
        engine.todo.extend(engine.machine.on(SourceEvent::Failed));
    }
}

fn write(world: &mut World, page: usize) {
    if world.source.guest == Guest::Running {
        world.truth[page] = 1;
        world.source.ram[page] = 1;
        if let Some(engine) = &mut world.source.engine {
            engine.dirty[page] = true;
        }
    } else {
        world.truth[page] = 2;
        world.destination.ram[page] = Some(2);
    }
}

fn send_page(world: &mut World, page: usize) {
    let content = world.source.ram[page];
    if let Some(engine) = &mut world.source.engine {
        // Taken from the log, or claimed, before it is read.
        engine.dirty[page] = false;
        engine.owed[page] = false;
    }
    if let Some(link) = world.source_link().filter(|link| link.destination_holds) {
        link.pages.push_back((page, content));
    }
}

fn page_arrives(world: &mut World) {
    let arrived = world
        .destination_link()
        .and_then(|link| link.pages.pop_front());
    let Some((page, content)) = arrived else {
        return;
    };
    if world.destination.ended {
        return;
    }
    match world.destination.stage {
        DestinationStage::Receiving => world.destination.ram[page] = Some(content),
        DestinationStage::Ready | DestinationStage::Running => {
            world.destination.ram[page].get_or_insert(content);
        }
        DestinationStage::Complete | DestinationStage::Declined => {}
    }
    all_here(world);
}

fn all_here(world: &mut World) {
    let all = world.destination.ram.iter().all(Option::is_some);
    let runs = world
        .destination
        .engine
        .as_ref()
        .is_some_and(|e| e.settled && e.machine.stage() == DestinationStage::Running);
    if all && runs {
        world.tell_destination(DestinationEvent::AllPagesReceived);
    }
}

fn switch(world: &mut World) {
    world.source.guest = Guest::Paused;
    let Some(engine) = &mut world.source.engine else {
        return;
    };
    engine.switched = true;
    engine.owed = engine.dirty;
    let owed = engine.owed;
    say_to_destination(world, ToDestination::Switch { owed });
}

fn say_to_destination(world: &mut World, message: ToDestination) {
    // To a side that is gone it never arrives.
    if let Some(link) = world.source_link().filter(|link| link.destination_holds) {
        link.to_destination.push_back(message);
    }
}

fn say_to_source(world: &mut World, message: ToSource) {
    if let Some(link) = world.destination_link().filter(|link| link.source_holds) {
        link.to_source.push_back(message);
    }
}

fn drop_guest(world: &mut World) {
    world.destination.guest = Guest::Absent;
    world.destination.ram = [None; PAGES];
}

fn source_does(world: &mut World) {
    let flaw = world.flaw;
    let Some(engine) = &mut world.source.engine else {
        return;
    };
    let Some(action) = engine.todo.pop_front() else {
        return;
    };
    match action {
        SourceAction::Record(SourceStage::Committed) if flaw == Some(Flaw::CommitUnrecorded) => {}
        SourceAction::Record(stage) => {
            if world.source.stage != SourceStage::Owned && stage == SourceStage::Owned {
                world.taken_back = true;
            }
            world.source.stage = stage;
        }
        SourceAction::SendCommit => say_to_destination(world, ToDestination::Commit),
        SourceAction::ResumeGuest => world.source.guest = Guest::Running,
        SourceAction::SendCancel => say_to_destination(world, ToDestination::CallOff),
        SourceAction::SendPages => engine.serving = true,
        SourceAction::Wait => {
            engine.waiting = true;
            source_lets_go(world);
        }
        SourceAction::Close => world.source.closed = true,
        SourceAction::End => {
            if world.source.stage == SourceStage::Done {
                say_to_destination(world, ToDestination::Goodbye);
            }
            source_ends(world);
        }
    }
}

fn destination_does(world: &mut World) {
    let flaw = world.flaw;
    let missing = world.destination.ram.map(|page| page.is_none());
    let Some(engine) = &mut world.destination.engine else {
        return;
    };
    let Some(action) = engine.todo.pop_front() else {
        return;
    };
    match action {
        DestinationAction::Record(DestinationStage::Running)
            if flaw == Some(Flaw::RunUnrecorded) => {}
        DestinationAction::Record(DestinationStage::Declined)
            if flaw == Some(Flaw::DeclineUnrecorded) => {}
        DestinationAction::Record(stage) => world.destination.stage = stage,
        DestinationAction::SendReady => {
            if !world.destination.ended {
                world.destination.guest = Guest::Paused;
            }
            say_to_source(world, ToSource::Ready);
        }
        DestinationAction::ResumeGuest
            if world.destination.ended && engine.machine.stage() == DestinationStage::Complete =>
        {
            engine.settled = true;
        }
        DestinationAction::ResumeGuest if world.destination.ended => {
            // Whether it ran before that is not known.
            say_to_source(world, ToSource::Failed);
            destination_ends(world);
        }
        DestinationAction::ResumeGuest => {
            engine.settled = true;
            // Without device state there is nothing to run.
            if world.destination.guest == Guest::Paused {
                world.destination.guest = Guest::Running;
            }
            if engine.todo.is_empty() {
                all_here(world);
            }
        }
        DestinationAction::SendGuestResumed => {
            if engine.committed_here {
                say_to_source(world, ToSource::GuestResumed);
            }
            all_here(world);
        }
        DestinationAction::SendComplete => say_to_source(world, ToSource::Complete),
        DestinationAction::SendShutDown => say_to_source(world, ToSource::ShutDown),
        DestinationAction::SendDeclined => say_to_source(world, ToSource::Declined),
        DestinationAction::SendCancel => say_to_source(world, ToSource::Cancel),
        DestinationAction::SendResumeReply(stage) => {
            say_to_source(world, ToSource::ResumeReply(stage, missing));
            all_here(world);
        }
        DestinationAction::DiscardGuest => drop_guest(world),
        DestinationAction::KillGuest => {
            drop_guest(world);
            world.destination.ended = true;
        }
        DestinationAction::Wait => {
            destination_lets_go(world);
            all_here(world);
        }
        DestinationAction::Close => world.destination.closed = true,
        DestinationAction::End => destination_ends(world),
    }
}

fn destination_hears(world: &mut World) {
    let flaw = world.flaw;
    let heard = world
        .destination_link()
        .and_then(|l| l.to_destination.pop_front());
    let Some(message) = heard else {
        return;
    };
    match message {
        ToDestination::Switch { owed } => {
            for (page, owed) in owed.into_iter().enumerate() {
                if owed && flaw != Some(Flaw::KeepStalePages) {
                    world.destination.ram[page] = None;
                }
            }
            world.tell_destination(DestinationEvent::DeviceStateLoaded);
        }
        ToDestination::Commit => {
            if let Some(engine) = &mut world.destination.engine {
                engine.committed_here = true;
            }
            let ready = world.destination.stage == DestinationStage::Ready;
            // A guest that is gone is not run.
            world.tell_destination(if ready && world.destination.ended {
                DestinationEvent::GuestFailed
            } else {
                DestinationEvent::Commit
            });
        }
        ToDestination::CallOff => world.tell_destination(DestinationEvent::CancelledBySource),
        ToDestination::Goodbye => world.tell_destination(DestinationEvent::Goodbye),
        ToDestination::ResumeRequest(stage) => {
            world.tell_destination(DestinationEvent::Connected(stage));
        }
    }
}

/// The oldest that has not been met: what was said on another one before is not
/// heard any more.
fn meet(world: &mut World) {
    destination_lets_go(world);
    let new = world
        .links
        .iter_mut()
        .find(|link| !link.met && link.destination_holds);
    let Some(link) = new else {
        return;
    };
    link.met = true;
    if let Some(ToDestination::ResumeRequest(stage)) = link.to_destination.pop_front() {
        world.tell_destination(DestinationEvent::Connected(stage));
    }
}

fn source_hears(world: &mut World) {
    let flaw = world.flaw;
    let Some(message) = world.source_link().and_then(|l| l.to_source.pop_front()) else {
        return;
    };
    let event = match message {
        ToSource::Ready => SourceEvent::Ready,
        ToSource::GuestResumed => SourceEvent::GuestResumed,
        ToSource::Complete => SourceEvent::Complete,
        ToSource::ShutDown => SourceEvent::ShutDown,
        ToSource::Declined => SourceEvent::Declined,
        ToSource::Failed => SourceEvent::Failed,
        ToSource::Cancel if world.source.stage == SourceStage::Owned => SourceEvent::Cancelled,
        // It crossed the commit, which the destination will obey.
        ToSource::Cancel => return,
        ToSource::ResumeReply(stage, missing) => {
            if let Some(engine) = &mut world.source.engine
                && flaw != Some(Flaw::TrustOldOwed)
            {
                engine.owed = missing;
            }
            SourceEvent::Connected(stage)
        }
    };
    world.tell_source(event);
}

fn connect(world: &mut World) {
    world.links.push_back(Link::new(false));
    if let Some(engine) = &mut world.source.engine {
        engine.waiting = false;
        engine.serving = false;
    }
    let stage = world.source.stage;
    say_to_destination(world, ToDestination::ResumeRequest(stage));
}
