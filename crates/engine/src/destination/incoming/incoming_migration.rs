//! A guest that arrives, up to *ready*: its links, and what works on them.

use std::sync::Arc;
use std::thread::JoinHandle;

use error_reporter::Report;

use crate::destination::context::{DestinationRun, ReceiveContext};
use crate::destination::error::DestinationFailure;
use crate::destination::incoming::offer::AcceptedOffer;
use crate::destination::incoming::silence_timer::SilenceTimer;
use crate::destination::last_message::last_message;
use crate::destination::network_frames::FrameReceiver;
use crate::destination::page_receiver;
use crate::destination::postcopy::installer::Installer;
use crate::destination::postcopy::{PostcopyStart, PreparedPostcopy};
use crate::destination::session::{Channel, DestinationSession, Links};
use crate::disks::{DiskRelay, RelayStart};
use crate::guest::DestinationGuest;
use crate::network_frames::FrameDelivery;
use crate::report::{Live, Phase};

#[derive(Debug)]
pub(crate) struct IncomingMigration<'a> {
    pub(crate) run: DestinationRun<'a>,
    pub(crate) session: DestinationSession,
    pub(crate) context: Arc<ReceiveContext>,
    /// The background links' receivers.
    pub(crate) receivers: Vec<JoinHandle<()>>,
    /// Post-copy, if it may follow.
    pub(crate) postcopy: PostcopyStart,
    /// What delivers frames that arrived for the guest at the source.
    pub(crate) frames: Option<FrameReceiver>,
    /// What carries the bytes of the disks' copies, until they are complete.
    pub(crate) disks: Vec<DiskRelay>,
    pub(super) silence: SilenceTimer,
}

impl<'a> IncomingMigration<'a> {
    /// Waits for the source's links, and starts what receives on them.
    pub(crate) fn open(
        guest: &mut dyn DestinationGuest,
        offer: AcceptedOffer,
        live: Arc<Live>,
        run: DestinationRun<'a>,
    ) -> Result<Self, DestinationFailure> {
        let options = run.options;
        let delivery = delivery(guest, &offer, run);
        let fault_threads = options.fault_threads_for(guest.describe().cpus);
        let ram = guest.ram();
        let mut session = DestinationSession::start(offer.control, &mut Channel::new())?;
        let expected = &offer.links;
        let links = session
            .await_links(
                run.incoming,
                expected,
                options.stall_timeout,
                &run.control.cancel,
            )
            .inspect_err(|cause| session.send_last(&last_message(cause)))?;
        let Links {
            background,
            urgent,
            frames,
            disks,
        } = links;
        let prepared = match offer.userfault.zip(urgent) {
            None => None,
            Some(((userfault, hosts), urgent)) => Some(PreparedPostcopy {
                installer: Installer::new(
                    userfault,
                    ram,
                    &hosts,
                    expected.background,
                    Arc::clone(&live.latencies),
                )
                .inspect_err(|cause| session.send_last(&last_message(cause)))?,
                urgent,
                fault_threads,
            }),
        };
        let frames = frames.map(|ends| FrameReceiver::start(ends, delivery));
        let frames = frames.transpose().map_err(DestinationFailure::Thread)?;
        let context = ReceiveContext::new(Some(offer.memory), live);
        // The source does not say which round it is in, or how many pages that has.
        context.tracker.begin(Phase::Precopy, 0, 0);
        let disks = disks
            .into_iter()
            .enumerate()
            .map(|(number, (stream, ends))| {
                let relay = DiskRelay::start(RelayStart {
                    name: format!("dst-disk-{number}"),
                    connection: guest.copied_disks()?.connect(number)?,
                    stream,
                    ends,
                    priority: options.priority,
                    stop: session.stop(),
                    counters: Arc::clone(&context.counters),
                    watch: None,
                });
                relay.map_err(DestinationFailure::Thread)
            })
            .collect::<Result<_, _>>()
            .inspect_err(|cause| session.send_last(&last_message(cause)))?;
        let receivers = background
            .into_iter()
            .enumerate()
            .map(|(number, ends)| {
                let (context, events) = (Arc::clone(&context), session.events());
                page_receiver::start_background(number, context, ends, events, options.priority)
            })
            .collect::<Result<_, _>>()?;
        Ok(Self {
            run,
            session,
            context,
            receivers,
            postcopy: PostcopyStart::new(prepared),
            frames,
            disks,
            silence: SilenceTimer::new(options.peer_timeout, options.stall_timeout),
        })
    }

    /// Every pre-copied page is here: all others are zeros.
    pub(crate) fn clear_what_was_not_sent(&self) -> Result<(), DestinationFailure> {
        match &self.context.memory {
            Some(memory) => Ok(memory.clear_kept()?),
            None => Ok(()),
        }
    }

    /// Every pre-copied page is here.
    pub(crate) fn end_installing(&self) {
        if let Some(memory) = &self.context.memory {
            memory.end_installing();
        }
    }

    /// Handles faults from now on, if post-copy may follow: before the source pauses its guest,
    /// because it takes time. Every pre-copied page is here.
    pub(crate) fn register(&mut self) -> Result<(), DestinationFailure> {
        if self.postcopy.is_prepared() {
            self.end_installing();
        }
        let events = self.session.events();
        self.postcopy
            .register(&self.context, &events, self.run.options)
    }

    /// Fails if the source has been silent for too long.
    pub(crate) fn check_silence(&mut self, doing: &'static str) -> Result<(), DestinationFailure> {
        let waiting = self.disks.iter().map(DiskRelay::waiting);
        self.silence.check(&self.context.counters, waiting, doing)
    }

    pub(crate) fn check(&self) -> Result<(), DestinationFailure> {
        if self.run.control.cancel.is_cancelled() {
            Err(DestinationFailure::Cancelled)
        } else {
            Ok(())
        }
    }
}

/// What delivers frames to the guest, if the source keeps them. A failure does not affect the
/// migration.
fn delivery(
    guest: &mut dyn DestinationGuest,
    offer: &AcceptedOffer,
    run: DestinationRun<'_>,
) -> Option<Box<dyn FrameDelivery>> {
    if !offer.links.frames {
        return None;
    }
    guest.deliver_frames().unwrap_or_else(|error| {
        run.control.observer.notice(&format!(
            "frames that arrive for the guest while it is paused are lost: {}",
            Report::new(&error)
        ));
        None
    })
}
