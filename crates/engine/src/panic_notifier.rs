//! A thread that panics is missed.

use std::sync::mpsc::SyncSender;
use std::thread;

/// Sends a word when the thread that holds it panics: nobody joins a thread
/// while the migration goes on, and what it had claimed would be waited for
/// for ever.
#[derive(Debug)]
pub(crate) struct PanicNotifier<E> {
    events: SyncSender<E>,
    word: Option<E>,
}

impl<E> PanicNotifier<E> {
    /// `word` goes to `events`, if it comes to that.
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
            // Nobody listens any more once the migration is over.
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
        let (events, heard) = sync_channel(4);
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
        assert_eq!(heard.iter().collect::<Vec<_>>(), ["died"]);
    }
}
