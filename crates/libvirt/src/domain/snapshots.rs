//! The snapshots of a domain, as they are described to another host.

use hikkoshi_wire::{DomainSnapshot, MAX_DOMAIN_XML, MAX_SNAPSHOTS};

use super::Domain;
use crate::{DomainError, incoming};

/// The most bytes that the descriptions of a domain's snapshots may have: they are in one message
/// with two of the domain.
const MAX_SNAPSHOT_BYTES: usize = 384 << 10;

impl Domain {
    /// What libvirt knows of its snapshots, each behind the one that it is based on.
    ///
    /// # Errors
    ///
    /// See [`DomainError`].
    pub(super) fn snapshots(&self) -> Result<Vec<DomainSnapshot>, DomainError> {
        let snapshots = self.daemon.ask("its snapshots", |domain| {
            let found =
                domain.list_all_snapshots(virt::sys::VIR_DOMAIN_SNAPSHOT_LIST_TOPOLOGICAL)?;
            let describe = |snapshot: &virt::domain_snapshot::DomainSnapshot| {
                let xml = snapshot.get_xml_desc(virt::sys::VIR_DOMAIN_SNAPSHOT_XML_SECURE)?;
                Ok(DomainSnapshot {
                    xml: xml.into_bytes(),
                    current: snapshot.is_current(0)?,
                })
            };
            found.iter().map(describe).collect::<Result<Vec<_>, _>>()
        })?;
        check_snapshots(&self.name, &snapshots)?;
        Ok(snapshots)
    }
}

/// Checks that these snapshots of the domain `name` can be described to another host.
fn check_snapshots(name: &str, snapshots: &[DomainSnapshot]) -> Result<(), DomainError> {
    let lengths = || snapshots.iter().map(|snapshot| snapshot.xml.len());
    let bytes = lengths().sum();
    if snapshots.len() > MAX_SNAPSHOTS
        || bytes > MAX_SNAPSHOT_BYTES
        || lengths().any(|length| length > MAX_DOMAIN_XML)
    {
        return Err(DomainError::Snapshots {
            name: name.to_owned(),
            snapshots: snapshots.len(),
            bytes,
        });
    }
    for snapshot in snapshots {
        if let Some((snapshot, file)) = incoming::external_memory(&snapshot.xml) {
            return Err(DomainError::SnapshotMemory {
                name: name.to_owned(),
                snapshot,
                file,
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots_that_cannot_be_described_to_another_host() {
        let snapshot = |xml: &str| DomainSnapshot {
            xml: xml.as_bytes().to_vec(),
            current: false,
        };
        let check = |snapshots: &[DomainSnapshot]| {
            check_snapshots("guest", snapshots).map_err(|error| error.to_string())
        };
        let memory = |attributes: &str| {
            snapshot(&format!(
                "<domainsnapshot><name>before</name><memory {attributes}/></domainsnapshot>"
            ))
        };
        for attributes in ["", "snapshot='no'", "snapshot='internal'"] {
            assert_eq!(check(&[memory(attributes)]), Ok(()), "{attributes}");
        }
        let external = "snapshot='external' file='/var/before.mem'";
        let error = check(&[memory(""), memory(external)]).unwrap_err();
        for part in [
            "before of the domain guest",
            "/var/before.mem",
            "--drop-snapshots",
            "--metadata",
        ] {
            assert!(error.contains(part), "{part:?} is not in: {error}");
        }
        // Below the limit of all together, and above that of one.
        let long = " ".repeat(MAX_DOMAIN_XML + 1);
        let error = check(&[snapshot(&long)]).unwrap_err();
        assert!(error.contains("too much for one move"), "{error}");
        let many = vec![memory(""); MAX_SNAPSHOTS + 1];
        assert!(check(&many).unwrap_err().contains("129"));
    }
}
