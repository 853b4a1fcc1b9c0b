//! The requests that are being answered: large ones in turn.
//!
//! A request for a huge page takes as long as its pages need on the network: up to
//! 16 ms for 2 MiB at 1 Gbit/s, and 512 times that for 1 GiB. The request of another
//! processor must not wait that long, so large requests are answered one piece each
//! in turn. The table has a fixed size: nothing is allocated for a request.

use hikkoshi_pages::PageRange;

/// The most large requests that are answered at a time. More wait in the socket.
const MAX_OPEN: usize = 64;

/// A request that is being answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OpenRequest {
    /// The requested pages.
    pub(crate) requested: PageRange,
    /// The part that may still be unsent.
    pub(crate) rest: PageRange,
}

impl OpenRequest {
    /// A request of which nothing has been sent.
    pub(crate) fn new(requested: PageRange) -> Self {
        Self {
            requested,
            rest: requested,
        }
    }

    /// Whether nothing has been sent for it.
    pub(crate) fn is_untouched(&self) -> bool {
        self.rest == self.requested
    }
}

/// The requests that are being answered, in turn.
#[derive(Debug)]
pub(crate) struct RequestQueue {
    open: [OpenRequest; MAX_OPEN],
    len: usize,
    turn: usize,
}

impl RequestQueue {
    pub(crate) fn empty() -> Self {
        Self {
            open: [OpenRequest::new(PageRange::EMPTY); MAX_OPEN],
            len: 0,
            turn: 0,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len == MAX_OPEN
    }

    /// Adds a request, unless the table is full.
    pub(crate) fn add(&mut self, requested: PageRange) {
        if let Some(slot) = self.open.get_mut(self.len) {
            *slot = OpenRequest::new(requested);
            self.len += 1;
        }
    }

    /// Calls `step` with the next request, to answer a piece of it. A request without
    /// a rest is removed and returned.
    pub(crate) fn next<E>(
        &mut self,
        step: impl FnOnce(&mut OpenRequest) -> Result<(), E>,
    ) -> Result<Option<OpenRequest>, E> {
        if self.turn >= self.len {
            self.turn = 0;
        }
        let Some(request) = self
            .open
            .get_mut(..self.len)
            .and_then(|o| o.get_mut(self.turn))
        else {
            return Ok(None);
        };
        step(request)?;
        let request = *request;
        if !request.rest.is_empty() {
            self.turn += 1;
            return Ok(None);
        }
        self.len -= 1;
        self.open.swap(self.turn, self.len);
        Ok(Some(request))
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use hikkoshi_pages::Page;

    fn huge(nth: u64) -> PageRange {
        PageRange::from_len(Page::new(512 * nth), 512)
    }

    /// Answers 100 pages of the next request; gives it, and whether it is done.
    fn step(requests: &mut RequestQueue) -> (PageRange, bool) {
        let mut turn = PageRange::EMPTY;
        let done = requests
            .next(|request| -> Result<(), ()> {
                turn = request.requested;
                let cut = request.rest.start().saturating_add(100);
                request.rest = request.rest.split_at(cut).1;
                Ok(())
            })
            .unwrap();
        assert!(done.is_none_or(|request| request.requested == turn));
        (turn, done.is_some())
    }

    #[test]
    fn requests_take_turns() {
        let mut requests = RequestQueue::empty();
        requests.add(huge(1));
        assert_eq!(step(&mut requests), (huge(1), false));
        requests.add(huge(2));
        let mut turns = Vec::new();
        while !requests.is_empty() {
            turns.push(step(&mut requests));
        }
        for pair in turns[..8].windows(2) {
            assert_ne!(pair[0].0, pair[1].0, "a request is answered twice in a row");
        }
        assert_eq!(turns.len(), 5 + 6);
        assert_eq!(turns.iter().filter(|(_, done)| *done).count(), 2);
    }

    #[test]
    fn the_table_is_bounded() {
        let mut requests = RequestQueue::empty();
        for nth in 0..MAX_OPEN as u64 {
            assert!(!requests.is_full());
            requests.add(huge(nth));
        }
        assert!(requests.is_full());
        let failed = requests.next(|_| Err("broken"));
        assert_eq!(failed, Err("broken"));
        assert!(requests.is_full());
    }
}
