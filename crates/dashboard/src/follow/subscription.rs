//! A subscriber's queue of events. A slow subscriber misses states; it delays no other.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;

/// The most bytes that may wait for a subscriber, beside the first recordings. One that needs more
/// is disconnected; its browser connects again.
const MAX_WAITING_BYTES: usize = 64 << 20;

/// A change of a migration, as it is sent.
#[derive(Debug, Clone)]
pub(super) struct Event {
    /// The entry whose state it is. A newer state of the same entry replaces it. `None`: another
    /// event, which is never left out.
    pub(super) state_of: Option<Arc<str>>,
    /// The event in the format of Server-Sent Events.
    pub(super) text: Bytes,
}

impl Event {
    /// An event that is never left out.
    pub(super) fn of_text(text: Bytes) -> Self {
        Self {
            state_of: None,
            text,
        }
    }
}

/// The events that wait for a subscriber.
#[derive(Debug, Default)]
pub(super) struct Queue(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    events: VecDeque<Event>,
    bytes: usize,
    /// The subscriber was too slow, or the server ends.
    is_closed: bool,
    waker: Option<Waker>,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds what a new subscriber gets first.
    pub(super) fn begin(&self, events: Vec<Event>) {
        self.lock().events.extend(events);
    }

    pub(super) fn push(&self, event: &Event) {
        let mut waiting = self.lock();
        if waiting.is_closed {
            return;
        }
        if let Some(name) = &event.state_of {
            let same = |waiting: &Event| waiting.state_of.as_ref() == Some(name);
            if let Some(old) = waiting.events.iter().position(same)
                && let Some(old) = waiting.events.remove(old)
            {
                waiting.bytes = waiting.bytes.saturating_sub(old.text.len());
            }
        }
        waiting.bytes += event.text.len();
        waiting.events.push_back(event.clone());
        if waiting.bytes > MAX_WAITING_BYTES {
            waiting.is_closed = true;
            waiting.events.clear();
        }
        if let Some(waker) = waiting.waker.take() {
            waker.wake();
        }
    }

    /// The subscriber gets no more events.
    pub(super) fn close(&self) {
        let mut waiting = self.lock();
        waiting.is_closed = true;
        if let Some(waker) = waiting.waker.take() {
            waker.wake();
        }
    }
}

/// The events for one subscriber. It ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Subscription(pub(super) Arc<Queue>);

impl Subscription {
    /// The next event, in the format of Server-Sent Events. `None`: there are no more.
    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let mut waiting = self.0.lock();
        if let Some(event) = waiting.events.pop_front() {
            waiting.bytes = waiting.bytes.saturating_sub(event.text.len());
            return Poll::Ready(Some(event.text));
        }
        if waiting.is_closed {
            return Poll::Ready(None);
        }
        waiting.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Queue {
    /// Whether the subscriber was dropped or is disconnected.
    pub(super) fn is_closed(&self) -> bool {
        self.lock().is_closed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(state_of: Option<&str>, text: &str) -> Event {
        Event {
            state_of: state_of.map(Arc::from),
            text: Bytes::copy_from_slice(text.as_bytes()),
        }
    }

    fn next(subscription: &mut Subscription) -> Poll<Option<Bytes>> {
        subscription.poll_next(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn a_slow_subscriber_misses_states_only() {
        let queue = Arc::new(Queue::default());
        let mut subscription = Subscription(Arc::clone(&queue));
        queue.begin(vec![event(None, "recording")]);
        for number in 0..1000 {
            queue.push(&event(Some("a"), &format!("a{number}")));
            queue.push(&event(Some("b"), &format!("b{number}")));
            if number == 500 {
                queue.push(&event(None, "notice"));
            }
        }
        for expected in ["recording", "notice", "a999", "b999"] {
            let got = next(&mut subscription);
            assert_eq!(
                got,
                Poll::Ready(Some(Bytes::from_static(expected.as_bytes())))
            );
        }
        assert_eq!(next(&mut subscription), Poll::Pending);
        assert_eq!(queue.lock().bytes, 0);
    }

    #[test]
    fn what_waits_for_a_subscriber_is_bounded() {
        let queue = Arc::new(Queue::default());
        let mut subscription = Subscription(Arc::clone(&queue));
        let large = "x".repeat(MAX_WAITING_BYTES / 8);
        for _ in 0..7 {
            queue.push(&event(None, &large));
        }
        assert!(!queue.is_closed());
        queue.push(&event(None, &large));
        queue.push(&event(None, &large));
        assert!(queue.is_closed());
        assert_eq!(next(&mut subscription), Poll::Ready(None));
    }
}
