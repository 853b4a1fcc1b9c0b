//! Whether Pacemaker still wants a move while the agent makes it.
//!
//! Pacemaker ends no action early. It plans again when `migrate_to` has ended; if it would no
//! longer move the guest to that node then, it stops the guest on both nodes and starts it from its
//! disk ("Forcing recovery … because it can no longer migrate", 2.1.5). So its scheduler is asked
//! before the handover, by `crm_simulate`, and a move that it would not order now is cancelled.

use std::fmt;
use std::sync::Arc;
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

/// Whether Pacemaker would order the move now: none if it decides nothing here.
type Answer = Result<Option<bool>, String>;

type Question = dyn Fn() -> Answer + Send + Sync;

/// An order to move a resource to a node.
pub(super) struct Order {
    question: Arc<Question>,
    pause: Duration,
    next: Instant,
    /// A question that is asked by a thread: nothing here waits for Pacemaker.
    asked: Option<Receiver<(Answer, Duration)>>,
    /// How many answers in a row were that it would not be ordered. None before the first answer
    /// that it would: a plan in which the order is not recognised says nothing.
    refusals: Option<u32>,
    /// Whether a failure was reported.
    has_failed: bool,
}

impl fmt::Debug for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { refusals, .. } = self;
        f.debug_struct("Order")
            .field("refusals", refusals)
            .finish_non_exhaustive()
    }
}

impl Order {
    pub(super) fn new(cluster: &Cluster, resource: &str, node: &str) -> Self {
        let (cluster, resource, node) = (cluster.clone(), resource.to_owned(), node.to_owned());
        Self::asking(move || cluster.would_move(&resource, &node), PAUSE)
    }

    fn asking(question: impl Fn() -> Answer + Send + Sync + 'static, pause: Duration) -> Self {
        Self {
            question: Arc::new(question),
            pause,
            next: Instant::now(),
            asked: None,
            refusals: None,
            has_failed: false,
        }
    }

    /// Whether Pacemaker has said twice in a row that it would not order this move now, after it
    /// has said once that it would. To be called repeatedly: true once for each such answer. If
    /// Pacemaker does not answer, the order stands.
    pub(super) fn is_withdrawn(&mut self) -> bool {
        match self.asked.as_ref().map(Receiver::try_recv) {
            Some(Err(TryRecvError::Empty)) => false,
            Some(Ok((answer, took))) => {
                self.asked = None;
                let again = self.hear(answer);
                self.next = Instant::now()
                    + self
                        .pause
                        .max(if again { took * SHARE } else { Duration::ZERO });
                self.refusals.is_some_and(|refusals| refusals >= 2)
            }
            // Its thread has panicked.
            Some(Err(TryRecvError::Disconnected)) => {
                self.asked = None;
                false
            }
            None => {
                if self.next <= Instant::now() {
                    self.next = Instant::now() + self.pause;
                    self.asked = self.ask();
                }
                false
            }
        }
    }

    /// Takes an answer into account. Returns whether the next one is not urgent.
    fn hear(&mut self, answer: Answer) -> bool {
        match answer {
            Ok(Some(true)) => self.refusals = Some(0),
            Ok(Some(false)) => {
                self.refusals = self.refusals.map(|refusals| refusals + 1);
                return self.refusals.is_none();
            }
            Ok(None) => self.refusals = self.refusals.map(|_| 0),
            Err(why) => {
                self.refusals = self.refusals.map(|_| 0);
                self.report(&why);
            }
        }
        true
    }

    fn ask(&mut self) -> Option<Receiver<(Answer, Duration)>> {
        let (answer, asked) = channel();
        let question = Arc::clone(&self.question);
        let ask = move || {
            let begun = Instant::now();
            let said = question();
            // The action may have ended.
            let _ = answer.send((said, begun.elapsed()));
        };
        match thread::Builder::new().name("ocf-order".into()).spawn(ask) {
            Ok(_) => Some(asked),
            Err(error) => {
                self.report(&error.to_string());
                None
            }
        }
    }

    /// Once.
    fn report(&mut self, why: &str) {
        if !self.has_failed {
            self.has_failed = true;
            streams::notice(&format!(
                "asking Pacemaker whether it still wants the move, which goes on: {why}"
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    /// After which of these answers the order is withdrawn.
    fn withdrawn_after(answers: &[Answer]) -> Vec<usize> {
        let mut rest = answers.to_vec();
        rest.reverse();
        let rest = Arc::new(Mutex::new(rest));
        let question = {
            let rest = Arc::clone(&rest);
            move || rest.lock().unwrap().pop().unwrap_or(Ok(Some(true)))
        };
        let mut order = Order::asking(question, Duration::ZERO);
        let mut withdrawn = Vec::new();
        for answer in 0..answers.len() {
            // Until it was asked, and has answered.
            while order.asked.is_none() {
                assert!(!order.is_withdrawn());
                order.next = Instant::now();
            }
            let mut is_withdrawn = false;
            while order.asked.is_some() {
                is_withdrawn |= order.is_withdrawn();
            }
            if is_withdrawn {
                withdrawn.push(answer);
            }
        }
        withdrawn
    }

    #[test]
    fn two_refusals_after_an_order_withdraw_it() {
        let (yes, no) = (Ok(Some(true)), Ok(Some(false)));
        let failed = Err("no such program".to_owned());
        let after = |answers: &[&Answer]| {
            let answers: Vec<Answer> = answers.iter().map(|&answer| answer.clone()).collect();
            withdrawn_after(&answers)
        };
        assert_eq!(after(&[&yes, &no, &no]), [2]);
        // Each further one may be a reason to try again.
        assert_eq!(after(&[&yes, &no, &no, &no]), [2, 3]);
        assert_eq!(after(&[&yes, &no, &yes, &no]), [0; 0]);
        assert_eq!(after(&[&yes, &no, &Ok(None), &no]), [0; 0]);
        assert_eq!(after(&[&yes, &no, &failed, &no, &no]), [4]);
    }

    #[test]
    fn an_order_that_was_never_seen_is_not_withdrawn() {
        let no = || Ok(Some(false));
        assert_eq!(withdrawn_after(&[no(), no(), no()]), [0; 0]);
        assert_eq!(withdrawn_after(&[Ok(None), no(), no()]), [0; 0]);
    }

    #[test]
    fn an_answer_is_not_waited_for() {
        let (stop, stopped) = channel::<()>();
        let stopped = Mutex::new(stopped);
        let question = move || {
            // Until the test has ended.
            let _ = stopped.lock().unwrap().recv();
            Ok(Some(false))
        };
        let mut order = Order::asking(question, Duration::ZERO);
        assert!((0..10).all(|_| !order.is_withdrawn()));
        drop(stop);
    }
}
