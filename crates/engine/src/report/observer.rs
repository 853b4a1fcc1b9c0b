//! Who observes a migration.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use crate::report::Live;

/// Observes one side of a migration.
///
/// ```
/// use std::sync::mpsc::{Sender, channel};
/// use std::sync::{Arc, OnceLock};
///
/// use hikkoshi_engine::Observer;
/// use hikkoshi_engine::report::Live;
///
/// /// Passes notices to a thread that prints them: to print may block, and the guest would wait for
/// /// its pages meanwhile. Another thread reads how far the migration is.
/// #[derive(Debug)]
/// struct Meter {
///     live: OnceLock<Arc<Live>>,
///     notices: Sender<String>,
/// }
///
/// impl Meter {
///     /// Bytes sent so far in pre-copy.
///     fn bytes(&self) -> Option<u64> {
///         Some(self.live.get()?.snapshot().state.bytes.precopy)
///     }
/// }
///
/// impl Observer for Meter {
///     fn begin(&self, live: &Arc<Live>) {
///         let _ = self.live.set(Arc::clone(live));
///     }
///
///     fn notice(&self, text: &str) {
///         let _ = self.notices.send(text.to_owned());
///     }
/// }
///
/// // For `MigrateControl` at the source, or `ReceiveControl` at the destination.
/// let (notices, printed) = channel();
/// let live = OnceLock::new();
/// let meter = Arc::new(Meter { live, notices });
/// let observer: Arc<dyn Observer> = Arc::<Meter>::clone(&meter);
/// # observer.notice("a sentence");
/// # assert_eq!(printed.recv().unwrap(), "a sentence");
/// assert_eq!(meter.bytes(), None);
/// ```
pub trait Observer: Send + Sync + Debug {
    /// A migration begins. Its state can be read from `live`, also after its end. Must return at
    /// once.
    fn begin(&self, live: &Arc<Live>);

    /// A sentence for the operator. Called from several threads: must return at once. It must not
    /// write to a terminal or a pipe, which may block.
    fn notice(&self, text: &str);

    /// When the engine that `live` follows had its last sign of the other side, if the observer of
    /// that engine has kept that. Asked once, when a migration is resumed: outages and page
    /// requests are counted from then on.
    fn last_sign_before(&self, live: &Live) -> Option<SystemTime> {
        let _ = live;
        None
    }
}

/// For a migration that another engine began: when that one had its last sign of the other side, as
/// far as `observer` knows.
pub(crate) fn last_sign_before(live: &Live, observer: &dyn Observer) -> Option<Instant> {
    let last = observer.last_sign_before(live);
    let last = last.filter(|_| live.is_resumed())?;
    // A clock that was set back says nothing.
    Instant::now().checked_sub(last.elapsed().ok()?)
}

/// Ignores everything.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Observer for Silent {
    fn begin(&self, _: &Arc<Live>) {}
    fn notice(&self, _: &str) {}
}
