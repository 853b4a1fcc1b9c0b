//! Whether Pacemaker still wants a move while the agent makes it.
//!
//! Pacemaker ends no action early. It plans again when `migrate_to` has ended; if it would no
//! longer move the guest to that node then, it stops the guest on both nodes and starts it from its
//! disk ("Forcing recovery … because it can no longer migrate", 2.1.5). So its scheduler is asked
//! before the handover, by `crm_simulate`, and a move that it would not order now is cancelled.

use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::cluster::Cluster;
use crate::output::streams;

/// The pause between two questions, at least.
const PAUSE: Duration = Duration::from_secs(2);

/// The scheduler works for at most this part of the time (1/20): it takes 50 ms in a small cluster,
/// and seconds in one with hundreds of resources.
const SHARE: u32 = 20;

/// An order to move a resource to a node.
#[derive(Debug)]
pub(super) struct Order {
    cluster: Cluster,
    resource: String,
    node: String,
    next: Instant,
    /// A question that is asked by a thread: nothing here waits for Pacemaker.
    asked: Option<Receiver<(Option<bool>, Duration)>>,
    /// How many answers in a row were that it would not be ordered.
    refusals: u32,
}

impl Order {
    pub(super) fn new(cluster: &Cluster, resource: &str, node: &str) -> Self {
        Self {
            cluster: cluster.clone(),
            resource: resource.to_owned(),
            node: node.to_owned(),
            next: Instant::now() + PAUSE,
            asked: None,
            refusals: 0,
        }
    }

    /// Whether Pacemaker has said twice in a row that it would not order this move now. To be
    /// called repeatedly. If Pacemaker does not answer, the order stands.
    pub(super) fn is_withdrawn(&mut self) -> bool {
        match self.asked.as_ref().map(Receiver::try_recv) {
            None if self.next <= Instant::now() => self.asked = self.ask(),
            None | Some(Err(TryRecvError::Empty)) => {}
            Some(answer) => {
                let (would_order, took) = answer.unwrap_or_default();
                self.refusals = match would_order {
                    Some(false) => self.refusals + 1,
                    Some(true) | None => 0,
                };
                self.asked = None;
                self.next = Instant::now() + PAUSE.max(took * SHARE);
            }
        }
        self.refusals >= 2
    }

    fn ask(&self) -> Option<Receiver<(Option<bool>, Duration)>> {
        let (answer, asked) = channel();
        let (cluster, resource, node) = (
            self.cluster.clone(),
            self.resource.clone(),
            self.node.clone(),
        );
        let ask = move || {
            let begun = Instant::now();
            let would_order = cluster.would_move(&resource, &node);
            // The action may have ended.
            let _ = answer.send((would_order, begun.elapsed()));
        };
        match thread::Builder::new().name("order".into()).spawn(ask) {
            Ok(_) => Some(asked),
            Err(error) => {
                streams::notice(&format!(
                    "asking Pacemaker whether it still wants the move: {error}"
                ));
                None
            }
        }
    }
}
