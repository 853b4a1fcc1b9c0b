//! What a destination knows of its guest, in words.

use hikkoshi_handover::DestinationStage;

/// At this stage, and with a QEMU that runs.
pub(crate) fn at(stage: DestinationStage) -> &'static str {
    match stage {
        DestinationStage::Receiving => "the guest does not run here, and its source has it",
        DestinationStage::Ready => {
            "the guest is here and does not run, and its source may have kept it"
        }
        DestinationStage::Running => "the guest runs here, and pages may be missing",
        DestinationStage::Complete => {
            "the guest runs here with all of its pages, and its source does not know that yet"
        }
        DestinationStage::Declined => {
            "the guest has not run here and never will, and its source does not know that yet"
        }
    }
}

/// At this stage, and its QEMU has ended.
pub(crate) fn without_qemu(stage: DestinationStage) -> &'static str {
    match stage {
        DestinationStage::Complete => {
            "the guest has run here with all of its pages, and its QEMU has ended since"
        }
        _ => "the guest has never run here, and its QEMU has ended",
    }
}
