//! What can happen next, and what follows from it.

use hikkoshi_handover::{
    DestinationEvent, DestinationStage, SourceAction, SourceEvent, SourceStage,
};

use super::world::{Flaw, Guest, PAGES, SourceEngine, ToSource, World};
use super::{destination_host, source_host};

/// One step of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    /// The guest writes a page, on the host where it runs.
    Write(usize),
    /// The source sends a page, before or after the switch.
    SendPage(usize),
    /// A page arrives.
    PageArrives,
    /// The source pauses its guest and sends everything needed to run it.
    Switch,
    /// The source performs the next action of its machine.
    SourceActs,
    /// The destination performs the next action of its machine.
    DestinationActs,
    /// A message arrives at the destination.
    DestinationReceives,
    /// A message arrives at the source.
    SourceReceives,
    /// The destination accepts a new connection, and closes the old one.
    AcceptLink,
    /// The source notices, rightly or not, that the connection is gone.
    SourceLosesLink,
    /// The destination does.
    DestinationLosesLink,
    /// `kill -9` of the source's engine.
    KillSource,
    /// `kill -9` of the destination's engine.
    KillDestination,
    /// The guard resumes the guest after its engine has ended, if the source owns it.
    GuardActs,
    /// `kill -9` of the guard, before it acts.
    KillGuard,
    /// The source's engine is started again.
    RestartSource,
    /// The destination's engine is started again.
    RestartDestination,
    /// The source connects again.
    Connect,
    /// The source's next record cannot be written.
    SourceRecordFails,
    /// The destination's next record cannot be written.
    DestinationRecordFails,
    /// The source's guest cannot be resumed.
    ResumeFails,
    /// The destination's guest cannot be resumed, and certainly never ran.
    GuestNeverRuns,
    /// Resuming it fails, and it may have run; the value says whether it did.
    GuestMayRun(bool),
    /// The destination's guest process ends, with its memory.
    GuestEnds,
    /// The destination's guest, which runs, shuts itself down.
    GuestShutsDown,
    /// The destination's engine notices the end of its guest.
    NoticesGuestEnd,
    /// The operator cancels at the source.
    CancelSource,
    /// The operator cancels at the destination.
    CancelDestination,
    /// The operator gives up at the source.
    GiveUpSource,
    /// The operator gives up at the destination, before the guest ran or after.
    GiveUpDestination,
}

/// Lets `step` happen.
pub(crate) fn take(world: &mut World, step: Step) {
    match step {
        Step::Write(page) => write(world, page),
        Step::SendPage(page) => source_host::send_page(world, page),
        Step::PageArrives => destination_host::page_arrives(world),
        Step::Switch => source_host::switch(world),
        Step::SourceActs => source_host::perform_action(world),
        Step::DestinationActs => destination_host::perform_action(world),
        Step::DestinationReceives => destination_host::receive(world),
        Step::SourceReceives => source_host::receive(world),
        Step::AcceptLink => destination_host::accept_link(world),
        Step::SourceLosesLink => {
            if world
                .source_link()
                .is_some_and(|link| link.destination_holds)
            {
                world.faults -= 1;
            }
            source_host::close_source_link(world);
            world.source_event(SourceEvent::LinkLost);
        }
        Step::DestinationLosesLink => {
            if world
                .destination_link()
                .is_some_and(|link| link.source_holds)
            {
                world.faults -= 1;
            }
            destination_host::close_destination_link(world);
            world.destination_event(DestinationEvent::LinkLost);
        }
        Step::KillSource => {
            world.faults -= 1;
            source_host::stop_engine(world);
        }
        Step::KillDestination => {
            world.faults -= 1;
            destination_host::stop_engine(world);
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
            world.source_event(SourceEvent::Restarted);
        }
        Step::RestartDestination => destination_host::restart(world),
        Step::Connect => source_host::connect(world),
        Step::SourceRecordFails => {
            world.faults -= 1;
            source_host::record_fails(world);
        }
        Step::DestinationRecordFails => {
            world.faults -= 1;
            destination_host::send_message(world, ToSource::Failed);
            if world.destination.stage == DestinationStage::Receiving {
                destination_host::drop_guest(world);
            }
            destination_host::stop_engine(world);
        }
        Step::ResumeFails => {
            world.faults -= 1;
            if let Some(engine) = &mut world.source.engine {
                engine.pending.pop_front();
                if world.flaw != Some(Flaw::ForgetPaused) {
                    engine
                        .pending
                        .retain(|action| *action != SourceAction::Close);
                }
            }
        }
        Step::GuestNeverRuns => {
            world.faults -= 1;
            destination_host::guest_never_ran(world);
        }
        Step::GuestMayRun(does) => {
            world.faults -= 1;
            if does {
                world.destination.guest = Guest::Running;
            }
            if world.flaw == Some(Flaw::DeclineWhenUnsure) {
                return destination_host::guest_never_ran(world);
            }
            destination_host::send_message(world, ToSource::Failed);
            destination_host::stop_engine(world);
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
            // An engine that is not running does not see the shutdown, and later reports a lost
            // guest.
            world.destination.shut_down = world.destination.engine.is_some();
            world.destination.ram = [None; PAGES];
        }
        Step::NoticesGuestEnd => {
            let runs = world.destination.engine.as_ref();
            let runs = runs.is_some_and(|e| e.machine.stage() == DestinationStage::Running);
            world.destination_event(if world.destination.shut_down && runs {
                DestinationEvent::ShutDown
            } else {
                DestinationEvent::GuestFailed
            });
        }
        Step::CancelSource => {
            world.cancelled = true;
            world.source_event(SourceEvent::Cancelled);
        }
        Step::CancelDestination => {
            world.cancelled = true;
            world.destination_event(DestinationEvent::Cancelled);
        }
        Step::GiveUpSource => {
            world.cancelled = true;
            if world.flaw != Some(Flaw::GiveUpRashly) {
                // Only the guest's changes at the destination are lost.
                world.truth = world.source.ram;
            }
            world.source_event(SourceEvent::GivenUp);
        }
        Step::GiveUpDestination => {
            world.cancelled = true;
            world.given_up_at_destination = true;
            world.destination_event(DestinationEvent::GivenUp);
        }
    }
    world
        .links
        .retain(|link| link.source_holds || link.destination_holds);
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
