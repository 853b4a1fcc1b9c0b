//! Whether the source's guest fits the VM here. Nothing is changed.

use error_reporter::Report;
use hikkoshi_linux::host_memory_available;
use hikkoshi_wire::{MAX_COPIED_DISKS, MAX_OBSTACLES, MAX_WARNINGS, Mismatch, OfferedGuest};

use crate::destination::error::DestinationFailure;
use crate::destination::incoming::processors;
use crate::destination::postcopy::huge::staging::Size;
use crate::guest::DestinationGuest;
use crate::obstacle::DestinationObstacle;

/// What was found when the source's guest was compared with the VM here.
#[derive(Debug, Default)]
pub(super) struct Comparison {
    /// Every reason to refuse the guest.
    pub(super) obstacles: Vec<DestinationObstacle>,
    /// What differs although the guest is not refused for it.
    pub(super) warnings: Vec<String>,
}

impl Comparison {
    /// Only this reason to refuse the guest.
    pub(super) fn obstacle(reason: String) -> Self {
        let mut found = Self::default();
        found.add(reason);
        found
    }

    /// Compares the source's guest with the VM here, and its disks with those here. `links`:
    /// how many background links the source will open.
    pub(super) fn new(vm: &mut dyn DestinationGuest, guest: &OfferedGuest, links: u16) -> Self {
        let mut found = Self::default();
        if vm.has_ended() {
            found.add(text(DestinationFailure::process_ended(vm)));
            return found;
        }
        // First: another device has other memory.
        let others = guest.description.differences(vm.describe());
        let has_other_blocks = others
            .iter()
            .any(|other| matches!(other, Mismatch::Blocks(_)));
        let here = vm.hardware();
        for error in guest.machine.differences(&here.machine) {
            // The RAM blocks are listed with the auxiliary memory again.
            if !(has_other_blocks && error.is_memory()) {
                found.add(text(error));
            }
        }
        for error in others {
            found.add(text(error));
        }
        let allowed = guest.allow_cpu_mismatch;
        match processors::compare(&guest.processors, &here.processors, allowed) {
            Ok(differences) => {
                let differs = |what| {
                    format!(
                        "the processors at the destination differ from the guest's, which the \
                         source allows: {what}"
                    )
                };
                found.warnings.extend(differences.map(differs));
            }
            Err(reason) => found.add(reason),
        }
        let disks = &guest.disks;
        let copied = disks.copied().count();
        if copied > MAX_COPIED_DISKS {
            found.add(format!(
                "the source copies {copied} disks, and at most {MAX_COPIED_DISKS} can be copied"
            ));
        } else if !disks.disks.is_empty() {
            match vm.compare_disks(disks) {
                Ok(compared) => {
                    compared.refused.into_iter().for_each(|why| found.add(why));
                    found.warnings.extend(compared.warnings);
                }
                Err(error) => found.add(text(error)),
            }
        }
        let sizes = Size::all(vm.ram().layout(), links);
        let staging = sizes.iter().map(Size::bytes).sum();
        let postcopy = room_for(staging, host_memory_available().ok()).err();
        let postcopy = postcopy
            .into_iter()
            .chain(vm.postcopy_obstacles().into_iter().map(text));
        found
            .obstacles
            .extend(postcopy.map(|reason| DestinationObstacle {
                reason,
                postcopy_only: true,
            }));
        found.obstacles.truncate(MAX_OBSTACLES);
        found.warnings.truncate(MAX_WARNINGS);
        found
    }

    fn add(&mut self, reason: String) {
        self.obstacles.push(DestinationObstacle {
            reason,
            postcopy_only: false,
        });
    }

    /// The warnings, or all reasons to refuse this migration.
    pub(super) fn refuse(self, may_postcopy: bool) -> Result<Vec<String>, String> {
        let obstacles = self.obstacles.into_iter();
        let mut reasons: Vec<_> = obstacles
            .filter(|obstacle| may_postcopy || !obstacle.postcopy_only)
            .map(|obstacle| obstacle.reason)
            .collect();
        match reasons.len() {
            0 => Ok(self.warnings),
            1 => Err(reasons.remove(0)),
            n => {
                let numbered = reasons.iter().enumerate();
                let numbered = numbered.map(|(index, reason)| format!("({}) {reason}", index + 1));
                let all = numbered.collect::<Vec<_>>().join("; ");
                Err(format!("for {n} reasons: {all}"))
            }
        }
    }
}

/// Whether there is memory to assemble huge pages. They are assembled in ordinary memory, not in
/// the pool that they come from, as many as the source may send at once. A VM that runs out of
/// memory in post-copy loses the guest.
fn room_for(need: u64, available: Option<u64>) -> Result<(), String> {
    match available {
        Some(available) if need > available => Err(format!(
            "putting the guest's huge pages together takes up to {} MiB of ordinary memory, and \
             {} MiB are available: free some, let the source use fewer background links \
             (--links), or move the guest with --mode precopy --when-stalled continue",
            need >> 20,
            available >> 20
        )),
        _ => Ok(()),
    }
}

/// The error with its causes.
pub(super) fn text(error: impl std::error::Error) -> String {
    Report::new(error).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_every_reason_that_matters() {
        let found = |reasons: &[(&str, bool)]| {
            let obstacle = |(reason, postcopy_only): &(&str, bool)| DestinationObstacle {
                reason: (*reason).to_owned(),
                postcopy_only: *postcopy_only,
            };
            Comparison {
                obstacles: reasons.iter().map(obstacle).collect(),
                warnings: vec!["d".to_owned()],
            }
        };
        let accepted = Ok(vec!["d".to_owned()]);
        assert_eq!(found(&[]).refuse(true), accepted);
        assert_eq!(found(&[("a", true)]).refuse(false), accepted);
        let refused = |reasons: &[_]| found(reasons).refuse(true).unwrap_err();
        assert_eq!(refused(&[("a", true)]), "a");
        assert_eq!(
            refused(&[("a", false), ("b", true)]),
            "for 2 reasons: (1) a; (2) b"
        );
    }

    #[test]
    fn memory_for_huge_pages_is_checked_before_anything_is_touched() {
        assert_eq!(room_for(0, Some(0)), Ok(()));
        assert_eq!(room_for(5 << 30, None), Ok(()), "unknown");
        assert_eq!(room_for(5 << 30, Some(5 << 30)), Ok(()));
        let refusal = room_for(5 << 30, Some(3 << 30)).unwrap_err();
        assert!(
            refusal.starts_with(
                "putting the guest's huge pages together takes up to 5120 MiB of ordinary \
                 memory, and 3072 MiB are available: "
            ),
            "{refusal}"
        );
    }
}
