//! Calls of libvirt's library that are waited for within a limit.
//!
//! The library itself waits without one while it opens a connection. On an open connection it
//! notices a daemon that hangs by its keep-alive messages, some 15 s later; not one whose main loop
//! still answers these. So each call is made on a thread of its own. One that is not answered in
//! time stays under way, and its thread ends with it: the daemon may still do what it was asked to.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

use virt::error::Error;

/// A call that is under way, or has returned.
#[derive(Debug)]
pub(crate) struct Call<T> {
    returned: Receiver<T>,
}

impl<T: Send + 'static> Call<T> {
    /// Makes the call on a new thread.
    pub(crate) fn start(call: impl FnOnce() -> T + Send + 'static) -> io::Result<Self> {
        let (sender, returned) = sync_channel(1);
        thread::Builder::new()
            .name("libvirt-call".to_owned())
            .spawn(move || {
                // Nobody receives it if nobody waits any more.
                let _ = sender.send(call());
            })?;
        Ok(Self { returned })
    }

    /// Waits until it returns. Can be repeated after [`RecvTimeoutError::Timeout`].
    ///
    /// # Errors
    ///
    /// It has not returned within the limit, or its thread has ended.
    pub(crate) fn wait(&self, limit: Duration) -> Result<T, RecvTimeoutError> {
        self.returned.recv_timeout(limit)
    }
}

/// The daemon has not done what it was asked to.
#[derive(Debug)]
pub(crate) enum CallError {
    /// It, or the library, has refused.
    Libvirt(Error),
    /// It has not answered for so long.
    NoAnswer(Duration),
    /// The call could not be made.
    System(io::Error),
}

impl CallError {
    /// For people, without the daemon's name.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Libvirt(error) => error.message().to_owned(),
            Self::NoAnswer(after) => format!("no answer within {} s", after.as_secs()),
            Self::System(error) => format!("calling libvirt's library: {error}"),
        }
    }

    /// Whether there is no such domain.
    pub(crate) fn is_no_domain(&self) -> bool {
        use virt::error::ErrorNumber::NoDomain;
        matches!(self, Self::Libvirt(error) if error.code() == NoDomain)
    }
}

/// Lets the library do something within `limit`.
pub(crate) fn within<T: Send + 'static>(
    limit: Duration,
    call: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, CallError> {
    let call = Call::start(call).map_err(CallError::System)?;
    match call.wait(limit) {
        Ok(returned) => returned.map_err(CallError::Libvirt),
        Err(RecvTimeoutError::Timeout) => Err(CallError::NoAnswer(limit)),
        Err(RecvTimeoutError::Disconnected) => {
            Err(CallError::System(io::Error::other("its thread has ended")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_does_not_return_is_left_under_way() {
        let (sender, receiver) = sync_channel(1);
        let call = Call::start(move || receiver.recv()).unwrap();
        let soon = Duration::from_millis(20);
        for _ in 0..2 {
            assert_eq!(call.wait(soon), Err(RecvTimeoutError::Timeout));
        }
        sender.send(7).unwrap();
        assert_eq!(call.wait(Duration::from_secs(60)), Ok(Ok(7)));
        assert_eq!(call.wait(soon), Err(RecvTimeoutError::Disconnected));
    }
}
