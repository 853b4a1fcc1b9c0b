//! Certificates and the private key that the command line names.

use std::os::unix::fs::PermissionsExt;

use hikkoshi_engine::Observer;
use hikkoshi_link::tls::Certificates;

use super::errors;
use crate::args::CertificateFiles;
use crate::journal;
use crate::output::exit::Exit;

/// Reads the certificates; `None` if none are given.
pub(super) fn read(files: &CertificateFiles) -> Result<Option<Certificates>, Exit> {
    match (&files.tls_ca, &files.tls_cert, &files.tls_key) {
        (Some(ca), Some(cert), Some(key)) => {
            // The journal names them, and --resume may run in another working directory.
            let [ca, cert, key] = [ca, cert, key].map(|path| journal::absolute(path));
            Certificates::read(&ca, &cert, &key)
                .map(Some)
                .map_err(errors::credentials)
        }
        _ => Ok(None),
    }
}

/// Warns if users other than its owner can read the private key.
pub(crate) fn warn_of_readable_key(files: &CertificateFiles, observer: &dyn Observer) {
    if let Some(warning) = readable_key(files) {
        observer.notice(&warning);
    }
}

/// The warning, if users other than its owner can read the private key.
pub(crate) fn readable_key(files: &CertificateFiles) -> Option<String> {
    let key = files.tls_key.as_ref()?;
    // An error is reported where the key is read.
    let metadata = std::fs::metadata(key).ok()?;
    let readers = readers(metadata.permissions().mode())?;
    Some(format!(
        "{readers} can read the private key in {}, and so impersonate this side ('chmod go-rwx' \
         prevents that)",
        key.display()
    ))
}

/// The users besides the owner who can read a file of that mode.
fn readers(mode: u32) -> Option<&'static str> {
    match (mode & 0o040 != 0, mode & 0o004 != 0) {
        (_, true) => Some("all users of this host"),
        (true, false) => Some("users of its group"),
        (false, false) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;

    #[test]
    fn a_key_that_others_can_read_is_reported() {
        let key = tempfile::NamedTempFile::new().unwrap();
        let warning = |mode| {
            std::fs::set_permissions(key.path(), Permissions::from_mode(mode)).unwrap();
            let files = CertificateFiles {
                tls_key: Some(key.path().to_owned()),
                ..CertificateFiles::default()
            };
            readable_key(&files).unwrap_or_default()
        };
        assert_eq!(warning(0o600), "");
        assert_eq!(warning(0o400), "");
        assert!(warning(0o640).contains("its group"));
        for mode in [0o644, 0o604] {
            let text = warning(mode);
            let name = key.path().to_str().unwrap();
            assert!(text.contains("all users") && text.contains(name), "{text}");
        }
    }
}
