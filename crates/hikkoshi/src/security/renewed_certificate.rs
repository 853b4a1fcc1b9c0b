//! The certificate of a daemon: it is read again when a file of it has changed.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use error_reporter::Report;
use hikkoshi_link::tls::TlsServer;

use super::certificates;
use super::errors::credentials;
use crate::args::Security;
use crate::output::exit::Exit;
use crate::output::streams;

/// A certificate, its key and its authorities, as they are in their files now.
#[derive(Debug)]
pub(crate) struct RenewedCertificate {
    security: Security,
    read: Mutex<Read>,
}

/// What was read.
#[derive(Debug)]
struct Read {
    files: Vec<Option<FileVersion>>,
    server: TlsServer,
}

/// What changes when a file is written or replaced: device, inode, size, and the time in seconds
/// and nanoseconds.
type FileVersion = (u64, u64, u64, i64, i64);

impl RenewedCertificate {
    /// Reads the certificate that the options name; `None`: they name none.
    pub(crate) fn read(security: &Security) -> Result<Option<Self>, Exit> {
        let files = versions(security);
        let Some(server) = server(security)? else {
            return Ok(None);
        };
        Ok(Some(Self {
            security: security.clone(),
            read: Mutex::new(Read { files, server }),
        }))
    }

    /// The certificate. If a file has changed and cannot be used, it is the one before.
    pub(crate) fn current(&self) -> TlsServer {
        let files = versions(&self.security);
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if read.files != files {
            // Also if it cannot be used: it is tried again when another file has changed.
            read.files = files;
            match server(&self.security) {
                Ok(Some(server)) => {
                    read.server = server;
                    streams::notice("the certificate was read again: its files have changed");
                }
                Ok(None) => {}
                Err(exit) => streams::notice(&format!(
                    "the files of the certificate have changed, and the one before is still used: \
                     {}",
                    exit.text()
                )),
            }
        }
        read.server.clone()
    }
}

fn server(security: &Security) -> Result<Option<TlsServer>, Exit> {
    let certificates = certificates::read(security)?;
    let server = certificates.map(TlsServer::certified).transpose();
    server.map_err(|error| credentials(Report::new(error)))
}

fn versions(security: &Security) -> Vec<Option<FileVersion>> {
    let files = [&security.tls_ca, &security.tls_cert, &security.tls_key];
    files.map(|file| file.as_deref().and_then(version)).to_vec()
}

fn version(file: &Path) -> Option<FileVersion> {
    let file = std::fs::metadata(file).ok()?;
    Some((
        file.dev(),
        file.ino(),
        file.size(),
        file.mtime(),
        file.mtime_nsec(),
    ))
}
