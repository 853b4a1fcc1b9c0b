//! What the source's host does: its engine performs the machine's actions.

use hikkoshi_handover::{SourceAction, SourceEvent, SourceStage};

use super::world::{Flaw, Guest, Link, SourceEngine, ToDestination, ToSource, World};

pub(crate) fn close_source_link(world: &mut World) {
    if let Some(link) = world.source_link() {
        link.source_holds = false;
        link.to_source.clear();
    }
}

pub(crate) fn stop_engine(world: &mut World) {
    world.source.engine = None;
    close_source_link(world);
}

pub(crate) fn record_fails(world: &mut World) {
    if world.flaw == Some(Flaw::CommitAnyway) {
        if let Some(engine) = &mut world.source.engine {
            engine.pending.pop_front();
        }
        return;
    }
    if world.source.stage != SourceStage::Owned {
        return stop_engine(world);
    }
    if let Some(engine) = &mut world.source.engine {
        let fresh = SourceEngine::new(SourceStage::Owned);
        engine.machine = fresh.machine;
        engine.pending.clear();
        // The engine takes its guest back, as for any other failure.
        engine
            .pending
            .extend(engine.machine.on(SourceEvent::Failed));
    }
}

pub(crate) fn send_page(world: &mut World, page: usize) {
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

pub(crate) fn switch(world: &mut World) {
    world.source.guest = Guest::Paused;
    let Some(engine) = &mut world.source.engine else {
        return;
    };
    engine.switched = true;
    engine.owed = engine.dirty;
    let owed = engine.owed;
    send_message(world, ToDestination::Switch { owed });
}

pub(crate) fn send_message(world: &mut World, message: ToDestination) {
    // To a side that is gone it never arrives.
    if let Some(link) = world.source_link().filter(|link| link.destination_holds) {
        link.to_destination.push_back(message);
    }
}

pub(crate) fn perform_action(world: &mut World) {
    let flaw = world.flaw;
    let Some(engine) = &mut world.source.engine else {
        return;
    };
    let Some(action) = engine.pending.pop_front() else {
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
        SourceAction::SendCommit => send_message(world, ToDestination::Commit),
        SourceAction::ResumeGuest => world.source.guest = Guest::Running,
        SourceAction::SendCancel => send_message(world, ToDestination::Cancel),
        SourceAction::SendPages => engine.serving = true,
        SourceAction::Wait => {
            engine.waiting = true;
            close_source_link(world);
        }
        SourceAction::Close => world.source.closed = true,
        SourceAction::End => {
            if world.source.stage == SourceStage::Done {
                send_message(world, ToDestination::Goodbye);
            }
            stop_engine(world);
        }
    }
}

pub(crate) fn receive(world: &mut World) {
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
    world.source_event(event);
}

pub(crate) fn connect(world: &mut World) {
    world.links.push_back(Link::new(false));
    if let Some(engine) = &mut world.source.engine {
        engine.waiting = false;
        engine.serving = false;
    }
    let stage = world.source.stage;
    send_message(world, ToDestination::ResumeRequest(stage));
}
