//! Paths and addresses in a form that does not depend on the working directory.

use std::path::{Path, PathBuf};

use hikkoshi_link::Address;

/// The path from the root, if that can be found out.
pub(crate) fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// The address with an absolute path, if it is a unix socket's.
pub(crate) fn absolute_address(address: &Address) -> Address {
    match address {
        Address::Unix(path) => Address::Unix(absolute(path)),
        Address::Tcp(_) => address.clone(),
    }
}
