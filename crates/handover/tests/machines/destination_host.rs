//! What the destination's host does: its engine performs the machine's actions.

use hikkoshi_handover::{DestinationAction, DestinationEvent, DestinationStage};

use super::world::{DestinationEngine, Flaw, Guest, PAGES, ToDestination, ToSource, World};

pub(crate) fn guest_never_ran(world: &mut World) {
    if let Some(engine) = &mut world.destination.engine {
        // Nothing behind it is done.
        engine.pending.clear();
    }
    world.destination_event(DestinationEvent::GuestNeverRan);
}

pub(crate) fn close_destination_link(world: &mut World) {
    if let Some(link) = world.destination_link() {
        link.destination_holds = false;
        link.to_destination.clear();
        link.pages.clear();
    }
    if let Some(engine) = &mut world.destination.engine {
        engine.committed_here = false;
    }
}

/// Also drops connections that the engine has not accepted.
pub(crate) fn stop_engine(world: &mut World) {
    world.destination.engine = None;
    if world.destination.stage != DestinationStage::Complete {
        // No engine knows of the shutdown any more.
        world.destination.shut_down = false;
    }
    for link in &mut world.links {
        link.destination_holds = false;
        link.to_destination.clear();
        link.pages.clear();
    }
}

pub(crate) fn restart(world: &mut World) {
    let stage = world.destination.stage;
    world.destination.engine = Some(DestinationEngine::new(stage));
    let event = match stage {
        DestinationStage::Ready | DestinationStage::Running if world.destination.ended => {
            DestinationEvent::GuestFailed
        }
        _ => DestinationEvent::Restarted,
    };
    world.destination_event(event);
    // No source is connected yet, and one that connects while the guest is being started is not
    // rejected.
    if let Some(engine) = &mut world.destination.engine
        && engine.pending.front() == Some(&DestinationAction::ResumeGuest)
    {
        engine
            .pending
            .retain(|action| *action != DestinationAction::Wait);
    }
}

pub(crate) fn page_arrives(world: &mut World) {
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
    check_all_received(world);
}

pub(crate) fn check_all_received(world: &mut World) {
    let all = world.destination.ram.iter().all(Option::is_some);
    let runs = world
        .destination
        .engine
        .as_ref()
        .is_some_and(|e| e.settled && e.machine.stage() == DestinationStage::Running);
    if all && runs {
        world.destination_event(DestinationEvent::AllPagesReceived);
    }
}

pub(crate) fn send_message(world: &mut World, message: ToSource) {
    if let Some(link) = world.destination_link().filter(|link| link.source_holds) {
        link.to_source.push_back(message);
    }
}

pub(crate) fn drop_guest(world: &mut World) {
    world.destination.guest = Guest::Absent;
    world.destination.ram = [None; PAGES];
}

pub(crate) fn perform_action(world: &mut World) {
    let flaw = world.flaw;
    let missing = world.destination.ram.map(|page| page.is_none());
    let Some(engine) = &mut world.destination.engine else {
        return;
    };
    let Some(action) = engine.pending.pop_front() else {
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
            send_message(world, ToSource::Ready);
        }
        DestinationAction::ResumeGuest
            if world.destination.ended && engine.machine.stage() == DestinationStage::Complete =>
        {
            engine.settled = true;
        }
        DestinationAction::ResumeGuest if world.destination.ended => {
            // Whether it ran before that is not known.
            send_message(world, ToSource::Failed);
            stop_engine(world);
        }
        DestinationAction::ResumeGuest => {
            engine.settled = true;
            // Without device state there is nothing to run.
            if world.destination.guest == Guest::Paused {
                world.destination.guest = Guest::Running;
            }
            if engine.pending.is_empty() {
                check_all_received(world);
            }
        }
        DestinationAction::SendGuestResumed => {
            if engine.committed_here {
                send_message(world, ToSource::GuestResumed);
            }
            check_all_received(world);
        }
        DestinationAction::SendComplete => send_message(world, ToSource::Complete),
        DestinationAction::SendShutDown => send_message(world, ToSource::ShutDown),
        DestinationAction::SendDeclined => send_message(world, ToSource::Declined),
        DestinationAction::SendCancel => send_message(world, ToSource::Cancel),
        DestinationAction::SendResumeReply(stage) => {
            send_message(world, ToSource::ResumeReply(stage, missing));
            check_all_received(world);
        }
        DestinationAction::DiscardGuest => drop_guest(world),
        DestinationAction::KillGuest => {
            drop_guest(world);
            world.destination.ended = true;
        }
        DestinationAction::Wait => {
            close_destination_link(world);
            check_all_received(world);
        }
        DestinationAction::Close => world.destination.closed = true,
        DestinationAction::End => stop_engine(world),
    }
}

pub(crate) fn receive(world: &mut World) {
    let flaw = world.flaw;
    let received = world
        .destination_link()
        .and_then(|l| l.to_destination.pop_front());
    let Some(message) = received else {
        return;
    };
    match message {
        ToDestination::Switch { owed } => {
            for (page, owed) in owed.into_iter().enumerate() {
                if owed && flaw != Some(Flaw::KeepStalePages) {
                    world.destination.ram[page] = None;
                }
            }
            world.destination_event(DestinationEvent::DeviceStateLoaded);
        }
        ToDestination::Commit => {
            if let Some(engine) = &mut world.destination.engine {
                engine.committed_here = true;
            }
            let ready = world.destination.stage == DestinationStage::Ready;
            // A guest that is gone is not run.
            world.destination_event(if ready && world.destination.ended {
                DestinationEvent::GuestFailed
            } else {
                DestinationEvent::Commit
            });
        }
        ToDestination::Cancel => world.destination_event(DestinationEvent::CancelledBySource),
        ToDestination::Goodbye => world.destination_event(DestinationEvent::Goodbye),
        ToDestination::ResumeRequest(stage) => {
            world.destination_event(DestinationEvent::Connected(stage));
        }
    }
}

/// Accepts the oldest link that was not accepted yet. Messages on the previous link are lost.
pub(crate) fn accept_link(world: &mut World) {
    close_destination_link(world);
    let new = world
        .links
        .iter_mut()
        .find(|link| !link.accepted && link.destination_holds);
    let Some(link) = new else {
        return;
    };
    link.accepted = true;
    if let Some(ToDestination::ResumeRequest(stage)) = link.to_destination.pop_front() {
        world.destination_event(DestinationEvent::Connected(stage));
    }
}
