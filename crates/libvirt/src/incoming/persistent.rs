//! The configuration that a persistent domain gets when its guest is here.
//!
//! It is kept in a file until then, because another program may be the one that completes the move.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use virt::domain::Domain;

use crate::connection::Connection;

fn file(folder: &Path, uuid: &str, autostart: bool) -> PathBuf {
    let kind = if autostart { "autostart" } else { "persistent" };
    folder.join(format!("domain-{uuid}.{kind}.xml"))
}

/// Keeps the configuration of the domain that is being created; `None`: it is to be transient.
pub(super) fn keep(
    folder: &Path,
    uuid: &str,
    xml: Option<&str>,
    autostart: bool,
) -> io::Result<()> {
    remove(folder, uuid);
    let Some(xml) = xml else {
        return Ok(());
    };
    // It may have passwords.
    let mut options = File::options();
    options.write(true).create_new(true).mode(0o600);
    let mut file = options.open(file(folder, uuid, autostart))?;
    file.write_all(xml.as_bytes())
}

/// Defines the domain, if it is to be persistent.
pub(super) fn define(uri: &str, folder: &Path, uuid: &str) -> Result<(), String> {
    for autostart in [false, true] {
        let path = file(folder, uuid, autostart);
        let shown = path.display();
        let failed = |what: &str| {
            format!(
                "the domain runs here, but was not made persistent: {what}. Its configuration is in \
                 {shown}: define it with 'virsh define', and remove the file"
            )
        };
        let xml = match std::fs::read_to_string(&path) {
            Ok(xml) => xml,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(failed(&error.to_string())),
        };
        let connection = Connection::open(uri).map_err(|error| failed(&error.to_string()))?;
        let text = |error: virt::error::Error| failed(error.message());
        let domain = Domain::define_xml(&connection, &xml).map_err(text)?;
        if autostart {
            domain.set_autostart(true).map_err(text)?;
        }
    }
    remove(folder, uuid);
    Ok(())
}

/// Removes what was kept.
pub(super) fn remove(folder: &Path, uuid: &str) {
    for autostart in [false, true] {
        let _ = std::fs::remove_file(file(folder, uuid, autostart));
    }
}
