//! The configuration that a persistent domain gets when its guest runs here.
//!
//! It is kept in a file beside the pipe, because another program may be the one that lets the guest
//! run.

use std::io;
use std::path::{Path, PathBuf};

use virt::domain::Domain;

use crate::connection::Connection;

fn file(pipe: &Path, autostart: bool) -> PathBuf {
    pipe.with_extension(if autostart {
        "autostart.xml"
    } else {
        "persistent.xml"
    })
}

/// Keeps the configuration of the domain that is created from `pipe`.
pub(super) fn keep(pipe: &Path, xml: Option<&str>, autostart: bool) -> io::Result<()> {
    remove(pipe);
    match xml {
        Some(xml) => std::fs::write(file(pipe, autostart), xml),
        None => Ok(()),
    }
}

/// Defines the domain, if it is to be persistent.
pub(super) fn define(connection: &Connection, pipe: &Path) -> Result<(), String> {
    for autostart in [false, true] {
        let path = file(pipe, autostart);
        let xml = match std::fs::read_to_string(&path) {
            Ok(xml) => xml,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(format!("reading {}: {error}", path.display())),
        };
        let text = |error: virt::error::Error| error.message().to_owned();
        let domain = Domain::define_xml(connection, &xml).map_err(text)?;
        if autostart {
            domain.set_autostart(true).map_err(text)?;
        }
    }
    remove(pipe);
    Ok(())
}

/// Removes what was kept.
pub(super) fn remove(pipe: &Path) {
    for autostart in [false, true] {
        let _ = std::fs::remove_file(file(pipe, autostart));
    }
}
