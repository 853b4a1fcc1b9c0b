//! The mark of a guest that hikkoshi has paused for a move: an object in QEMU.
//!
//! QEMU's own migration leaves the source's guest in the state `postmigrate`. hikkoshi pauses it
//! with `stop`, so its state is `paused`, like that of a guest that its owner has paused. The mark
//! tells the two apart: such a guest may run elsewhere, and a second move would start a second
//! copy. It is set before the pause and removed when the guest is restored.

use serde_json::json;

use crate::qmp::migration_status::RunState;
use crate::qmp::qom;
use crate::qmp::{Client, QmpError};

/// The object's name.
const NAME: &str = "hikkoshi-paused";

/// The name of a second object: QEMU has released the guest's disks. QEMU 7.2 aborts if it has to
/// release them twice, and does not tell whether it has.
const DISKS_RELEASED: &str = "hikkoshi-disks-released";

/// The name of a third object: it was reported what another program has done to the guest after it
/// was handed over.
const HARM_REPORTED: &str = "hikkoshi-harm-reported";

/// The name of a fourth object: the guest was moved, and its destination needs nothing more from
/// here. It has all of its pages there, or has shut down there.
const MOVED: &str = "hikkoshi-moved";

/// The name of a fifth object, without the others: the guest ran, and is paused for the moment in
/// which the copies of its disks are given up. It runs nowhere else.
const ENDING_COPIES: &str = "hikkoshi-ending-copies";

/// What is shown as the state of a marked guest that does not run.
pub(crate) const STATE: &str = "paused by hikkoshi for a move";

/// Advice for a marked guest that does not run.
pub(crate) const ADVICE: &str = "it may run elsewhere: then never resume it here, but continue with the program that moved it. \
     Resume it (QMP commands 'blockdev-del', node-name moved-by-hikkoshi, and 'cont') only if you \
     know that it was not handed over. If it has run here since, and its owner has paused it again, \
     remove the mark (QMP command 'object-del', id hikkoshi-paused)";

/// What is shown as the state of a marked guest that has moved away.
pub const MOVED_STATE: &str = "moved away by hikkoshi";

/// Advice for a marked guest that has moved away.
const MOVED_ADVICE: &str = "\
     it has moved to its destination, which needs nothing more from here: never resume it here, \
     and end this QEMU (QMP command 'quit')";

/// Marks the guest. Marking it twice is harmless.
pub(crate) fn set(client: &mut Client) -> Result<(), QmpError> {
    remove_others(client)?;
    add(client, NAME)
}

/// Removes the marks that only a guest marked by [`NAME`] has.
fn remove_others(client: &mut Client) -> Result<(), QmpError> {
    for name in [DISKS_RELEASED, HARM_REPORTED, MOVED] {
        delete(client, name)?;
    }
    Ok(())
}

/// Whether the guest is marked.
pub(crate) fn is_set(client: &mut Client) -> Result<bool, QmpError> {
    exists(client, NAME)
}

/// Removes the mark, if there is one.
pub(crate) fn remove(client: &mut Client) -> Result<(), QmpError> {
    remove_others(client)?;
    delete(client, NAME)
}

/// Marks a marked guest as one that was moved, and of which nothing is needed here any more.
pub(crate) fn set_moved(client: &mut Client) -> Result<(), QmpError> {
    add(client, MOVED)
}

/// The state and the advice for a guest that does not run, if it is marked.
pub(crate) fn marked(
    client: &mut Client,
) -> Result<Option<(&'static str, &'static str)>, QmpError> {
    Ok(match (is_set(client)?, exists(client, MOVED)?) {
        (false, _) => None,
        (true, false) => Some((STATE, ADVICE)),
        (true, true) => Some((MOVED_STATE, MOVED_ADVICE)),
    })
}

/// Marks a marked guest as one whose disks QEMU has released.
pub(crate) fn set_disks_released(client: &mut Client) -> Result<(), QmpError> {
    add(client, DISKS_RELEASED)
}

/// Whether QEMU has released the disks of this marked guest.
pub(crate) fn are_disks_released(client: &mut Client) -> Result<bool, QmpError> {
    exists(client, DISKS_RELEASED)
}

/// Marks a marked guest as one of which harm was reported.
pub(crate) fn set_harm_reported(client: &mut Client) -> Result<(), QmpError> {
    add(client, HARM_REPORTED)
}

/// Whether harm was reported of this marked guest.
pub(crate) fn is_harm_reported(client: &mut Client) -> Result<bool, QmpError> {
    exists(client, HARM_REPORTED)
}

/// Marks a guest that is to be paused for giving up the copies of its disks. Twice is harmless.
pub(crate) fn set_ending_copies(client: &mut Client) -> Result<(), QmpError> {
    add(client, ENDING_COPIES)
}

/// Whether the guest is marked as paused for giving up the copies of its disks.
pub(crate) fn is_ending_copies(client: &mut Client) -> Result<bool, QmpError> {
    exists(client, ENDING_COPIES)
}

/// Removes this mark, if there is one.
pub(crate) fn remove_ending_copies(client: &mut Client) -> Result<(), QmpError> {
    delete(client, ENDING_COPIES)
}

fn exists(client: &mut Client, name: &str) -> Result<bool, QmpError> {
    let objects = qom::children(client, "/objects")?;
    Ok(objects.iter().any(|(known, _)| known == name))
}

fn add(client: &mut Client, name: &str) -> Result<(), QmpError> {
    if exists(client, name)? {
        return Ok(());
    }
    // The smallest object that every QEMU has.
    let arguments = json!({ "qom-type": "secret", "id": name, "data": "paused" });
    client.execute("object-add", arguments).map(drop)
}

fn delete(client: &mut Client, name: &str) -> Result<(), QmpError> {
    if exists(client, name)? {
        client.execute("object-del", json!({ "id": name }))?;
    }
    Ok(())
}

/// QEMU's name for the state, or [`STATE`], or [`MOVED_STATE`].
pub(crate) fn describe(client: &mut Client, state: RunState) -> Result<String, QmpError> {
    if state.running {
        return Ok(state.status);
    }
    let marked = marked(client)?.map(|(state, _)| state.to_owned());
    Ok(marked.unwrap_or(state.status))
}
