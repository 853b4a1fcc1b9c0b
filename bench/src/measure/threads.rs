//! Joining scoped threads.

/// Joins a thread; a panic in it continues here.
pub(crate) fn join<T>(thread: std::thread::ScopedJoinHandle<'_, T>) -> T {
    match thread.join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}
