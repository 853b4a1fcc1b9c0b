//! The certificate of a daemon: it is read again when a file of it has changed.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use error_reporter::Report;
use hikkoshi_link::tls::TlsServer;

use super::certificates;
use super::errors::credentials;
use crate::args::CertificateFiles;
use crate::output::exit::Exit;
use crate::output::streams;

/// How often a certificate that cannot be used is tried again, if its files have not changed: it
/// may become valid.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// A certificate, its key and its authorities, as they are in their files now.
#[derive(Debug)]
pub(crate) struct RenewedCertificate {
    paths: CertificateFiles,
    read: Mutex<Read>,
}

/// What was read.
#[derive(Debug)]
struct Read {
    files: Vec<Option<FileVersion>>,
    /// `None`: none that could be used was there yet.
    server: Option<TlsServer>,
    tried: Instant,
}

/// What changes when a file is written or replaced: device, inode, size, and the time in seconds
/// and nanoseconds.
type FileVersion = (u64, u64, u64, i64, i64);

impl RenewedCertificate {
    /// Reads the certificate that the options name; `None`: they name none. One that cannot be used
    /// is reported: it may be renewed.
    pub(crate) fn read(paths: &CertificateFiles) -> Option<Self> {
        let files = versions(paths);
        let server = match server(paths) {
            Ok(server) => Some(server?),
            Err(exit) => {
                streams::notice(&format!(
                    "the certificate cannot be used, and no source is admitted by one until it is \
                     renewed: {}",
                    exit.text()
                ));
                None
            }
        };
        Some(Self {
            paths: paths.clone(),
            read: Mutex::new(Read {
                files,
                server,
                tried: Instant::now(),
            }),
        })
    }

    /// The certificate. If a file has changed and cannot be used, it is the one before, if there
    /// was one.
    pub(crate) fn current(&self) -> Option<TlsServer> {
        let files = versions(&self.paths);
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = read.files != files;
        if changed || (read.server.is_none() && read.tried.elapsed() >= RETRY_INTERVAL) {
            read.files = files;
            read.tried = Instant::now();
            match server(&self.paths) {
                Ok(server) => {
                    read.server = server;
                    streams::notice(match changed {
                        true => "the certificate was read again: its files have changed",
                        false => "the certificate can be used now",
                    });
                }
                Err(_) if !changed => {}
                Err(exit) => streams::notice(&format!(
                    "the files of the certificate have changed, and {}: {}",
                    match read.server {
                        Some(_) => "the one before is still used",
                        None => "it cannot be used",
                    },
                    exit.text()
                )),
            }
        }
        read.server.clone()
    }
}

fn server(paths: &CertificateFiles) -> Result<Option<TlsServer>, Exit> {
    let certificates = certificates::read(paths)?;
    let server = certificates.map(TlsServer::certified).transpose();
    server.map_err(|error| credentials(Report::new(error)))
}

fn versions(paths: &CertificateFiles) -> Vec<Option<FileVersion>> {
    let files = [&paths.tls_ca, &paths.tls_cert, &paths.tls_key];
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
