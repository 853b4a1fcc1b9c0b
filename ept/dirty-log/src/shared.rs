//! One dirty log for several clients, none of which takes another's pages.

use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use error_reporter::Report;
use hikkoshi_dirty::{DirtyError, DirtyLog, take_pending};
use hikkoshi_pages::{PageBitmap, PageRange};

/// A dirty log that several clients read: a display and a migration, for example. Each client has
/// a log of its own ([`SharedLog::client`]), so a take by one does not remove pages from another's.
///
/// A take of a range by one client takes it from the log below, and adds the pages to all clients.
/// So the cost of the log below is paid once for each page, and each client costs one bit a page.
#[derive(Debug)]
pub struct SharedLog {
    log: Box<dyn DirtyLog>,
    pages: u64,
    /// One thread at a time moves pages from the log to the clients, so that no page is on its way
    /// to a client that takes it.
    clients: Mutex<Clients>,
}

/// The pages that the clients have not taken yet.
#[derive(Debug, Default)]
struct Clients {
    pending: Vec<Arc<PageBitmap>>,
    stopped: bool,
}

impl SharedLog {
    /// Shares a log that was started for a guest of this many pages.
    #[must_use]
    pub fn new(log: impl DirtyLog + 'static, pages: u64) -> Arc<Self> {
        Arc::new(Self {
            log: Box::new(log),
            pages,
            clients: Mutex::default(),
        })
    }

    /// Adds a client. Its log reports each write after this call; it may report earlier ones that
    /// no client has taken.
    ///
    /// # Errors
    ///
    /// [`DirtyError::Stopped`]: the last client has stopped the log.
    pub fn client(self: &Arc<Self>) -> Result<ClientLog, DirtyError> {
        let mut clients = self.lock()?;
        let pending = Arc::new(PageBitmap::empty(self.pages));
        clients.pending.push(Arc::clone(&pending));
        drop(clients);
        Ok(ClientLog {
            shared: Arc::clone(self),
            pending,
            stopped: AtomicBool::new(false),
        })
    }

    /// Moves the dirty pages of `range` to all clients.
    fn collect(&self, range: PageRange) -> Result<(), DirtyError> {
        let clients = self.lock()?;
        self.log.take(range, &mut |run| {
            for pending in &clients.pending {
                pending.set_range(run);
            }
        })
    }

    fn lock(&self) -> Result<MutexGuard<'_, Clients>, DirtyError> {
        let clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        match clients.stopped {
            true => Err(DirtyError::Stopped),
            false => Ok(clients),
        }
    }

    /// Removes a client. The last one stops the log.
    fn remove(&self, client: &Arc<PageBitmap>) -> Result<(), DirtyError> {
        let mut clients = self.lock()?;
        clients
            .pending
            .retain(|pending| !Arc::ptr_eq(pending, client));
        clients.stopped = clients.pending.is_empty();
        if clients.stopped {
            self.log.stop()
        } else {
            Ok(())
        }
    }
}

/// The log of one client of a [`SharedLog`]. Stopping it stops it for this client only; the last
/// client stops the shared log.
#[derive(Debug)]
pub struct ClientLog {
    shared: Arc<SharedLog>,
    pending: Arc<PageBitmap>,
    stopped: AtomicBool,
}

impl ClientLog {
    fn collect(&self, range: PageRange) -> Result<PageRange, DirtyError> {
        if self.stopped.load(Ordering::Acquire) {
            return Err(DirtyError::Stopped);
        }
        let range = range.intersect(self.pending.all());
        self.shared.collect(range)?;
        Ok(range)
    }
}

impl DirtyLog for ClientLog {
    fn take(&self, range: PageRange, dirty: &mut dyn FnMut(PageRange)) -> Result<(), DirtyError> {
        let range = self.collect(range)?;
        take_pending(&self.pending, range, dirty);
        Ok(())
    }

    fn peek(&self, range: PageRange, dirty: &mut dyn FnMut(PageRange)) -> Result<(), DirtyError> {
        let range = self.collect(range)?;
        self.pending.runs(range).for_each(dirty);
        Ok(())
    }

    /// A client may get pages that were written before it was added.
    fn starts_clean(&self) -> bool {
        false
    }

    fn stop(&self) -> Result<(), DirtyError> {
        match self.stopped.swap(true, Ordering::AcqRel) {
            true => Ok(()),
            false => self.shared.remove(&self.pending),
        }
    }
}

impl Drop for ClientLog {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            tracing::warn!(error = %Report::new(&error), "cannot stop the dirty log");
        }
    }
}
