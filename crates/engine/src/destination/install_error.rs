//! Why a post-copied page could not be installed.

use hikkoshi_pages::PageRange;
use hikkoshi_userfault::CopyError;
use thiserror::Error;

/// Why a page could not be installed.
#[derive(Debug, Error)]
pub enum InstallError {
    /// The kernel did not take it.
    #[error(transparent)]
    Copy(#[from] CopyError),
    /// The source sends huge pages in a way that no source does.
    #[error(transparent)]
    Staging(#[from] TooManyPartial),
    /// Another process has put other content there.
    #[error(
        "{range} of the guest's memory, which the source was to send, holds something else already: \
         another process than this QEMU has the RAM file mapped or open (a vhost-user backend, say, \
         or a tool that reads it). With that content the guest would be corrupted"
    )]
    Filled {
        /// Which pages.
        range: PageRange,
    },
}

/// The peer began more huge pages than it finished.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("the source sends pieces of more than {0} huge pages at once")]
pub struct TooManyPartial(pub usize);
