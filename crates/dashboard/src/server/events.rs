//! The body of `/events`: Server-Sent Events, with comments where there are none.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame};
use tokio::time::{Instant, Sleep, sleep};

use crate::follow::Subscription;

/// A comment, which readers ignore (HTML standard, 9.2.6): keeps proxies from closing the
/// connection, and shows when the reader has gone.
const COMMENT: Bytes = Bytes::from_static(b":\n\n");

/// The events for one reader.
#[derive(Debug)]
pub(super) struct Events {
    subscription: Subscription,
    keep_alive: Duration,
    silent: Pin<Box<Sleep>>,
}

impl Events {
    pub(super) fn new(subscription: Subscription, keep_alive: Duration) -> Self {
        Self {
            subscription,
            keep_alive,
            silent: Box::pin(sleep(keep_alive)),
        }
    }
}

impl Body for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let events = self.get_mut();
        let next = match events.subscription.poll_next(context) {
            Poll::Ready(next) => next,
            Poll::Pending if events.silent.as_mut().poll(context).is_pending() => {
                return Poll::Pending;
            }
            Poll::Pending => Some(COMMENT),
        };
        let due = Instant::now() + events.keep_alive;
        events.silent.as_mut().reset(due);
        Poll::Ready(next.map(|text| Ok(Frame::data(text))))
    }
}
