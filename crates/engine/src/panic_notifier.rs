//! Reports that a thread has panicked.

use std::sync::mpsc::SyncSender;
use std::thread;

/// Sends an event when the thread that holds it panics. Threads are not joined during the
/// migration, so without this event the main thread would wait for ever for what the thread had
/// claimed.
#[derive(Debug)]
pub(crate) struct PanicNotifier<E> {
    events: SyncSender<E>,
    word: Option<E>,
}

impl<E> PanicNotifier<E> {
    /// `word` is sent to `events` on a panic.
    pub(crate) fn new(events: &SyncSender<E>, word: E) -> Self {
        Self {
            events: events.clone(),
            word: Some(word),
        }
    }
}

impl<E> Drop for PanicNotifier<E> {
    fn drop(&mut self) {
        if let Some(word) = self.word.take().filter(|_| thread::panicking()) {
            // After the end of the migration nothing receives events any more.
            let _ = self.events.send(word);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::sync_channel;

    #[test]
    fn only_a_panic_is_told() {
        let (events, received) = sync_channel(4);
        for panics in [false, true] {
            let events = events.clone();
            let ended = thread::spawn(move || {
                let _last = PanicNotifier::new(&events, "died");
                assert!(!panics, "on purpose");
            })
            .join();
            assert_eq!(ended.is_err(), panics);
        }
        drop(events);
        assert_eq!(received.iter().collect::<Vec<_>>(), ["died"]);
    }
}
