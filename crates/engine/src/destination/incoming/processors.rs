//! Whether the guest would notice that its processors differ here.

use hikkoshi_wire::{MAX_TEXT, Processors, text};

/// What the operator can do about it.
const ADVICE: &str = "a guest notices such a change while it runs: a program that uses a feature \
                      which is missing is ended. Start the destination's QEMU with the source's \
                      -cpu and -smp options, on a host that can provide them (-cpu max and -cpu \
                      host give other features on other hosts and in other versions of QEMU; a \
                      named model gives the same). If you know that the guest can do with these, \
                      use 'hikkoshi migrate --allow-cpu-mismatch'";

/// Compares the processors of the source's guest with those here. Returns the differences if there
/// are any and they are `allowed`.
///
/// # Errors
/// The reason to refuse the guest.
pub(crate) fn compare(
    source: &Processors,
    here: &Processors,
    allowed: bool,
) -> Result<Option<String>, String> {
    source
        .loadable_in(here)
        .map_err(|mismatch| mismatch.to_string())?;
    let differences = source.differences(here);
    if differences.is_empty() {
        return Ok(None);
    }
    if allowed {
        return Ok(Some(differences.to_string()));
    }
    Err(refusal(&differences.to_string()))
}

/// The reason for a refusal. A reason that is too long is cut at its end, where the advice is; so
/// the differences are cut before.
fn refusal(differences: &str) -> String {
    let reason = |differences: &str| format!("comparing the two guests: {differences}; {ADVICE}");
    let room = MAX_TEXT.saturating_sub(reason("").len());
    reason(&text::at_most(differences, room))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A failure is the message.
mod tests {
    use hikkoshi_wire::{
        CpuidRegister, CpuidWord, Processor, ProcessorKind, ProcessorPlace, ProcessorSetting,
        Topology,
    };

    use super::*;

    /// A guest with many processors, in which every name and number is `n`.
    fn large(n: u32) -> Processors {
        let name = format!("{n}").repeat(1000);
        let kind = ProcessorKind {
            features: (0..100)
                .map(|leaf| CpuidWord {
                    leaf,
                    subleaf: 0,
                    register: CpuidRegister::Ebx,
                    bits: if n == 1 { 0xaaaa_aaaa } else { 0x5555_5555 },
                })
                .collect(),
            filtered: Vec::new(),
            settings: (0..100)
                .map(|number| ProcessorSetting {
                    name: format!("x{number}").into(),
                    value: name.clone().into(),
                })
                .collect(),
        };
        Processors {
            accelerator: "tcg".into(),
            tsc_scaling: false,
            topology: Topology {
                cores: 255,
                most: 255,
                ..Topology::default()
            },
            kinds: vec![kind],
            processors: (0..255)
                .map(|index| Processor {
                    index,
                    kind: 0,
                    apic_id: index,
                    tsc_hz: 0,
                    place: ProcessorPlace {
                        core: index * n,
                        ..ProcessorPlace::default()
                    },
                })
                .collect(),
        }
    }

    #[test]
    fn the_advice_is_there_however_much_differs() {
        let source = large(1);
        let mut places = source.clone();
        for processor in &mut places.processors {
            processor.place.socket = processor.index + 1;
        }
        for here in [places, large(2)] {
            let reason = compare(&source, &here, false).unwrap_err();
            assert!(reason.len() <= MAX_TEXT, "{}", reason.len());
            assert!(reason.ends_with(ADVICE), "{reason}");
        }
    }
}
