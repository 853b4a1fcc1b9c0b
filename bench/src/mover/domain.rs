//! Moves a domain from one libvirt daemon to the other, with hikkoshi or with libvirt itself.

use std::path::Path;
use std::time::Instant;

use hikkoshi_lab::HostPair;
use serde_json::{Map, Value};

use super::{HikkoshiMigration, MoveOutcome, OwnReport};
use crate::args::Args;
use crate::error::BenchError;
use crate::plan::Case;
use crate::testbed::DomainTestbed;

/// Moves the domain with the case's system.
pub(crate) fn migrate_domain(
    testbed: &DomainTestbed<'_>,
    case: &Case,
    program: &Path,
    args: &Args,
) -> Result<MoveOutcome, BenchError> {
    match (case.system.hikkoshi_mode(), case.system.virsh_options()) {
        (Some(mode), _) => {
            HikkoshiMigration::start_domain(testbed, program, mode, args)?.finish(None)
        }
        (None, Some(options)) => virsh_migrate(testbed, options),
        (None, None) => unreachable!("domains are moved by hikkoshi or libvirt"),
    }
}

/// Lets libvirt move the domain, with further options.
pub(crate) fn virsh_migrate(
    testbed: &DomainTestbed<'_>,
    options: &[&str],
) -> Result<MoveOutcome, BenchError> {
    let name = testbed.domain.name();
    let uri = format!("qemu+tcp://{}/system", HostPair::DESTINATION);
    let address = format!("tcp://{}", HostPair::DESTINATION);
    // libvirt does not know that the hosts share their disks.
    let words = ["migrate", "--live", "--unsafe", name, &uri, &address];
    let started = Instant::now();
    testbed.source.virsh(&[&words, options].concat())?;
    let ended = Instant::now();
    let info = testbed
        .destination
        .virsh(&["domjobinfo", name, "--completed"])?;
    let report = job_info(&info);
    Ok(MoveOutcome {
        started,
        ended,
        called_off: false,
        own_downtime_ms: number(&report, "Total downtime"),
        rounds: report["Iteration"]
            .as_str()
            .and_then(|text| text.parse().ok()),
        report: OwnReport::Other(report),
    })
}

/// What `virsh domjobinfo` prints, by name.
fn job_info(text: &str) -> Value {
    let members = text.lines().filter_map(|line| {
        let (name, value) = line.split_once(':')?;
        Some((name.trim().to_owned(), value.trim().into()))
    });
    Value::Object(members.collect::<Map<_, _>>())
}

/// The number before the unit.
fn number(report: &Value, name: &str) -> Option<f64> {
    let words = report[name].as_str()?;
    words.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_downtime_is_what_libvirt_reports() {
        let printed = "Job type:         Completed   \nOperation:        Incoming migration\n\
                       Total downtime:   104          ms\nIteration:        3\n";
        let report = job_info(printed);
        assert_eq!(report["Operation"], "Incoming migration");
        assert_eq!(number(&report, "Total downtime"), Some(104.0));
        assert_eq!(number(&report, "Setup time"), None);
    }
}
