//! What each side reports while it migrates.

use std::sync::{Arc, Mutex, OnceLock};

use hikkoshi_engine::Observer;
use hikkoshi_engine::report::Live;

/// Records the messages for the operator.
#[derive(Debug, Default)]
pub(crate) struct Notices(Mutex<Vec<String>>);

impl Notices {
    pub(crate) fn all(&self) -> String {
        self.0.lock().unwrap().join("\n")
    }
}

impl Observer for Notices {
    fn begin(&self, _: &Arc<Live>) {}

    fn notice(&self, text: &str) {
        self.0.lock().unwrap().push(text.to_owned());
    }
}

/// The state of one side, as soon as its migration has begun.
pub(crate) type LiveState = Arc<OnceLock<Arc<Live>>>;

/// The observer of one side: records its messages, and keeps its state.
#[derive(Debug)]
pub(super) struct RecordingObserver {
    pub(super) notices: Arc<Notices>,
    pub(super) live: LiveState,
}

impl Observer for RecordingObserver {
    fn begin(&self, live: &Arc<Live>) {
        self.live.set(Arc::clone(live)).unwrap();
    }

    fn notice(&self, text: &str) {
        self.notices.notice(text);
    }
}
