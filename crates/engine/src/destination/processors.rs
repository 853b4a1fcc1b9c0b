//! Whether the guest would notice that its processors are others here.

use hikkoshi_wire::Processors;

/// What a person can do about it.
const ADVICE: &str = "a guest notices such a change while it runs: a program that uses a feature \
                      which is missing is ended. Start the destination's QEMU with the source's \
                      -cpu and -smp options, on a host that can provide them (-cpu max and -cpu \
                      host give other features on other hosts and in other versions of QEMU; a \
                      named model gives the same). If you know that the guest can do with these, \
                      use 'hikkoshi migrate --allow-cpu-mismatch'";

/// Compares what the source's guest was given, and whether something else is
/// allowed, with what is here. Gives the differences if there are any and they
/// are allowed.
///
/// # Errors
/// The reason to refuse the guest.
pub(super) fn compare(
    source: Option<(Processors, bool)>,
    here: &Processors,
) -> Result<Option<String>, String> {
    let Some((source, allowed)) = source else {
        return Err(
            "hikkoshi at the source is older and does not say what processors its guest has; \
             update it"
                .into(),
        );
    };
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
    Err(format!("comparing the two guests: {differences}; {ADVICE}"))
}
