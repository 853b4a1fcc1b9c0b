//! Decides about each message between the two sides.

use std::fmt;

use hikkoshi_lab::relay::{Fate, Message, Part, Passing, RelayPolicy, Towards};
use hikkoshi_wire::{Features, HELLO_LEN, Hello};

/// A test's decision about each message after the hellos.
pub(crate) type Decide = dyn Fn(&Message) -> Fate + Send + Sync;

/// The policy of a relay between the two sides.
pub(crate) struct MessagePolicy {
    pub(crate) decide: Box<Decide>,
    /// What passes of the destination's features.
    pub(crate) features: Features,
}

impl fmt::Debug for MessagePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MessagePolicy").finish_non_exhaustive()
    }
}

impl RelayPolicy for MessagePolicy {
    fn before(&self, passing: &mut Passing<'_>) -> Fate {
        match &passing.part {
            Part::Message(message) => (self.decide)(message),
            Part::Hello(_) if passing.towards == Towards::Source => {
                let greeting = passing.bytes.first_chunk_mut::<HELLO_LEN>().unwrap();
                let mut hello = Hello::decode(greeting).unwrap();
                hello.features = hello.features.common(self.features);
                *greeting = hello.encode();
                Fate::Pass
            }
            _ => Fate::Pass,
        }
    }
}
