//! The states of a guest on one node, and how they follow from what was found.

use hikkoshi_handover::{DestinationStage, SourceStage};
use hikkoshi_qemu::{GuestState, MOVED_STATE};

/// Defines [`State`] with the words of its states and what they mean.
macro_rules! states {
    ($($name:ident $words:literal $meaning:literal,)*) => {
        /// What there is of a guest on this node.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(super) enum State {
            $(#[doc = $meaning] $name,)*
        }

        impl State {
            /// All of them, in the order of the table.
            #[cfg(test)]
            pub(super) const ALL: &[Self] = &[$(Self::$name,)*];

            /// How it is called.
            pub(super) const fn words(self) -> &'static str {
                match self {
                    $(Self::$name => $words,)*
                }
            }

            /// What it means.
            pub(super) const fn meaning(self) -> &'static str {
                match self {
                    $(Self::$name => $meaning,)*
                }
            }
        }
    };
}

states! {
    Absent "absent" "There is no QEMU of the guest here, and nothing to finish.",
    Running "running" "The guest runs here, with all of its pages.",
    Paused "paused" "The guest is here, and somebody has paused it, or QEMU has (an I/O error).",
    Prepared "prepared" "The guest's QEMU was started here, and the guest has not run yet.",
    Halted "halted" "The guest has shut down, or has crashed; its QEMU is still here.",
    Silent "silent" "A QEMU of the guest is here and does not answer. No move explains that.",
    Unreached "unreached" "The domain's QEMU is here, and its libvirt daemon does not answer. No move explains that.",
    Leaving "leaving" "The guest belongs here, and is being moved away. It was not handed over.",
    Interrupted "interrupted" "The guest belongs here. The move's engine was killed before the handover, so it may be paused.",
    Committed "committed" "The source may have handed the guest over, and does not know yet whether it has. It is paused here.",
    Owing "owing" "The guest was handed over, and runs at the destination. Pages that are missing there are here.",
    Moved "moved" "The guest was handed over with all of its pages. Its QEMU is still here, paused.",
    Forsaken "forsaken" "The guest was handed over, or may have been, to a node that has left the cluster since.",
    Incoming "incoming" "A QEMU waits for the guest, or receives it. It was not handed over.",
    Ready "ready" "The guest was loaded here, paused. Its source decides whether it runs here.",
    Orphaned "orphaned" "As incoming or ready, from a node that has left the cluster since.",
    Declined "declined" "The guest was loaded here, has not run, and never will. Its source has it.",
    Arriving "arriving" "The guest runs here, and pages are missing. An engine fetches them.",
    Stranded "stranded" "The guest runs here, pages are missing, and no engine fetches them.",
    Lost "lost" "The guest has run here, and pages that it lacked never come: its QEMU has ended, or the source's, or the source's node has left the cluster.",
    Unknown "unknown" "A journal cannot be read, or contradicts what QEMU says.",
}

/// The process behind the guest's monitor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Qemu {
    /// There is none.
    None,
    /// This one, if its number is known.
    Process(Option<u32>),
}

/// What a source's journal says.
#[derive(Debug, Clone, Copy)]
pub(super) struct SourceFacts {
    /// How far the handover is.
    pub(super) stage: SourceStage,
    /// An engine, or a guard, works with the journal.
    pub(super) held: bool,
}

/// What a destination's journal says.
#[derive(Debug, Clone, Copy)]
pub(super) struct DestinationFacts {
    /// How far the handover is.
    pub(super) stage: DestinationStage,
    /// Pages may be missing.
    pub(super) postcopy: bool,
    /// An engine works with the journal.
    pub(super) held: bool,
    /// Its QEMU exists.
    pub(super) has_qemu: bool,
    /// Its last engine has reported that the guest is lost.
    pub(super) reported_lost: bool,
}

/// What was found of a guest.
#[derive(Debug)]
pub(super) struct Facts {
    pub(super) qemu: Qemu,
    /// It was started for a guest that was not handed over to it.
    pub(super) waits: bool,
    pub(super) source: Option<SourceFacts>,
    pub(super) destination: Option<DestinationFacts>,
    /// A journal that may be this guest's cannot be read.
    pub(super) has_unreadable: bool,
    /// The other side's node has left the cluster, and no link leads there any more.
    pub(super) peer_is_gone: bool,
    /// It is a domain with a QEMU, and its daemon does not answer.
    pub(super) daemon_is_away: bool,
}

impl Facts {
    /// The state, if it does not depend on what QEMU answers: it cannot answer while an engine has
    /// its monitor, or while it waits for a page.
    pub(super) fn state(&self) -> Option<State> {
        if let Some(source) = self.source {
            return Some(self.of_source(source));
        }
        if let Some(destination) = self.destination {
            return self.of_destination(destination);
        }
        if self.waits {
            return Some(match self.peer_is_gone {
                true => State::Orphaned,
                false => State::Incoming,
            });
        }
        match (self.has_unreadable, self.qemu) {
            (true, _) => Some(State::Unknown),
            (false, Qemu::None) => Some(State::Absent),
            (false, Qemu::Process(_)) => None,
        }
    }

    fn of_source(&self, source: SourceFacts) -> State {
        match source.stage {
            SourceStage::Owned if source.held => State::Leaving,
            SourceStage::Owned => State::Interrupted,
            SourceStage::Committed | SourceStage::HandedOver if self.peer_is_gone => {
                State::Forsaken
            }
            SourceStage::Committed => State::Committed,
            SourceStage::HandedOver => State::Owing,
            SourceStage::Done => State::Moved,
        }
    }

    fn of_destination(&self, destination: DestinationFacts) -> Option<State> {
        let DestinationFacts {
            has_qemu,
            held,
            postcopy,
            reported_lost,
            ..
        } = destination;
        Some(match destination.stage {
            DestinationStage::Receiving | DestinationStage::Ready if self.peer_is_gone => {
                State::Orphaned
            }
            // It was never handed over. The journal of a `Ready` one is the answer for its source.
            DestinationStage::Receiving if !has_qemu => State::Absent,
            DestinationStage::Receiving => State::Incoming,
            DestinationStage::Ready => State::Ready,
            DestinationStage::Declined if has_qemu => State::Declined,
            // The journals stay for the sources. Another QEMU of the guest may run.
            DestinationStage::Declined => return self.of_another_qemu(),
            DestinationStage::Complete if !has_qemu => return self.of_another_qemu(),
            DestinationStage::Complete => return None,
            DestinationStage::Running if !has_qemu => State::Lost,
            DestinationStage::Running if !postcopy => return None,
            DestinationStage::Running if reported_lost || self.peer_is_gone => State::Lost,
            DestinationStage::Running if held => State::Arriving,
            DestinationStage::Running => State::Stranded,
        })
    }

    fn of_another_qemu(&self) -> Option<State> {
        match self.qemu {
            Qemu::None => Some(State::Absent),
            Qemu::Process(_) => None,
        }
    }

    /// The state by what QEMU has answered, if no journal decides.
    pub(super) fn answered(&self, answer: Option<&GuestState>) -> State {
        let has_all = self
            .destination
            .is_some_and(|destination| destination.has_qemu);
        let Some(guest) = answer else {
            // An engine has its monitor.
            return match (has_all, self.daemon_is_away) {
                (true, _) => State::Running,
                (false, true) => State::Unreached,
                (false, false) => State::Silent,
            };
        };
        match guest.state.as_str() {
            MOVED_STATE | "postmigrate" => State::Moved,
            "inmigrate" => State::Incoming,
            // Its journal is elsewhere.
            _ if guest.has_userfault && !has_all => State::Unknown,
            _ if guest.running => State::Running,
            "shutdown" | "guest-panicked" | "internal-error" | "watchdog" => State::Halted,
            "prelaunch" => State::Prepared,
            "paused" | "suspended" | "io-error" | "debug" | "save-vm" | "restore-vm" | "colo" => {
                State::Paused
            }
            // Such as one that hikkoshi has paused for a move, without its journal.
            _ => State::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hikkoshi_qemu::LastMigration;

    fn nothing() -> Facts {
        Facts {
            qemu: Qemu::None,
            waits: false,
            source: None,
            destination: None,
            has_unreadable: false,
            peer_is_gone: false,
            daemon_is_away: false,
        }
    }

    fn source(stage: SourceStage, held: bool, peer_is_gone: bool) -> Option<State> {
        let facts = Facts {
            qemu: Qemu::Process(Some(1)),
            source: Some(SourceFacts { stage, held }),
            peer_is_gone,
            ..nothing()
        };
        facts.state()
    }

    /// Whatever QEMU says: it is not asked.
    #[test]
    fn a_guest_that_was_handed_over_does_not_run_at_its_source() {
        for held in [false, true] {
            use SourceStage::{Committed, Done, HandedOver};
            assert_eq!(source(Committed, held, false), Some(State::Committed));
            assert_eq!(source(HandedOver, held, false), Some(State::Owing));
            assert_eq!(source(Done, held, false), Some(State::Moved));
            assert_eq!(source(Committed, held, true), Some(State::Forsaken));
            assert_eq!(source(HandedOver, held, true), Some(State::Forsaken));
        }
        assert_eq!(source(SourceStage::Owned, true, true), Some(State::Leaving));
        let interrupted = Some(State::Interrupted);
        assert_eq!(source(SourceStage::Owned, false, true), interrupted);
    }

    #[test]
    fn a_destination_is_what_its_journal_says() {
        use DestinationStage::{Complete, Declined, Ready, Receiving, Running};
        let state = |stage, has_qemu, held, peer_is_gone| {
            let facts = Facts {
                qemu: match has_qemu {
                    true => Qemu::Process(Some(1)),
                    false => Qemu::None,
                },
                destination: Some(DestinationFacts {
                    stage,
                    postcopy: true,
                    held,
                    has_qemu,
                    reported_lost: false,
                }),
                peer_is_gone,
                ..nothing()
            };
            facts.state()
        };
        for (stage, has_qemu, held, peer_is_gone, expected) in [
            (Receiving, true, true, false, Some(State::Incoming)),
            (Receiving, false, false, false, Some(State::Absent)),
            (Ready, true, true, false, Some(State::Ready)),
            // Its source has to learn that it never ran.
            (Ready, false, true, false, Some(State::Ready)),
            (Ready, true, true, true, Some(State::Orphaned)),
            (Declined, true, true, false, Some(State::Declined)),
            (Declined, false, true, false, Some(State::Absent)),
            (Running, true, true, false, Some(State::Arriving)),
            (Running, true, false, false, Some(State::Stranded)),
            (Running, true, true, true, Some(State::Lost)),
            (Running, false, true, false, Some(State::Lost)),
            // QEMU is asked: all pages are there.
            (Complete, true, false, true, None),
            (Complete, false, false, false, Some(State::Absent)),
        ] {
            let found = state(stage, has_qemu, held, peer_is_gone);
            assert_eq!(
                found, expected,
                "{stage:?} {has_qemu} {held} {peer_is_gone}"
            );
        }
    }

    #[test]
    fn a_qemu_that_waits_has_no_guest() {
        let mut facts = Facts {
            qemu: Qemu::Process(None),
            waits: true,
            ..nothing()
        };
        assert_eq!(facts.state(), Some(State::Incoming));
        facts.peer_is_gone = true;
        assert_eq!(facts.state(), Some(State::Orphaned));
    }

    #[test]
    fn what_cannot_be_read_is_not_nothing() {
        assert_eq!(nothing().state(), Some(State::Absent));
        let facts = Facts {
            has_unreadable: true,
            ..nothing()
        };
        assert_eq!(facts.state(), Some(State::Unknown));
    }

    #[test]
    fn qemu_is_asked_if_no_journal_decides() {
        let mut facts = Facts {
            qemu: Qemu::Process(Some(1)),
            ..nothing()
        };
        assert_eq!(facts.state(), None);
        assert_eq!(facts.answered(None), State::Silent);
        facts.daemon_is_away = true;
        assert_eq!(facts.answered(None), State::Unreached);
        let says = |state: &str, has_userfault| {
            facts.answered(Some(&GuestState {
                state: state.to_owned(),
                running: state == "running",
                has_userfault,
                migration: LastMigration::None,
            }))
        };
        assert_eq!(says("running", false), State::Running);
        assert_eq!(says("running", true), State::Unknown);
        assert_eq!(says("paused", false), State::Paused);
        assert_eq!(says("prelaunch", false), State::Prepared);
        assert_eq!(says("shutdown", false), State::Halted);
        assert_eq!(says("inmigrate", false), State::Incoming);
        assert_eq!(says(MOVED_STATE, false), State::Moved);
        assert_eq!(says("postmigrate", false), State::Moved);
        assert_eq!(says("paused by hikkoshi for a move", false), State::Unknown);
    }
}
