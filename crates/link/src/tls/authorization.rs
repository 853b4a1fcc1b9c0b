//! Which source a destination with an invitation accepts.

use std::sync::{Mutex, PoisonError};

use super::invitation::{Fingerprint, Proof, Secret};

/// A destination's answer to a proof, one byte on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The source is accepted.
    Welcome,
    /// The source does not know the secret.
    NotInvited,
    /// Another source has used the invitation.
    Used,
}

impl Verdict {
    pub(super) fn to_byte(self) -> u8 {
        match self {
            Self::Welcome => 1,
            Self::NotInvited => 2,
            Self::Used => 3,
        }
    }

    pub(super) fn from_byte(byte: u8) -> Option<Self> {
        [Self::Welcome, Self::NotInvited, Self::Used]
            .into_iter()
            .find(|verdict| verdict.to_byte() == byte)
    }
}

/// Decides which source is accepted: before a migration is under way, any invited source; from then
/// on, only the migration's source.
#[derive(Debug)]
pub(super) struct Authorization {
    secret: Secret,
    destination: Fingerprint,
    source: Mutex<Option<Fingerprint>>,
}

impl Authorization {
    pub(super) fn new(
        secret: Secret,
        destination: Fingerprint,
        source: Option<Fingerprint>,
    ) -> Self {
        Self {
            secret,
            destination,
            source: Mutex::new(source),
        }
    }

    /// Decides about a source that has proved that it has the key `source`.
    pub(super) fn judge(&self, source: Fingerprint, proof: &Proof) -> Verdict {
        match self.source() {
            Some(known) if known == source => Verdict::Welcome,
            _ if !self.secret.verify(source, self.destination, proof) => Verdict::NotInvited,
            Some(_) => Verdict::Used,
            None => Verdict::Welcome,
        }
    }

    /// Accepts from now on only `source`; `None`: any invited source.
    pub(super) fn bind(&self, source: Option<Fingerprint>) {
        *self.source.lock().unwrap_or_else(PoisonError::into_inner) = source;
    }

    /// The source of the migration under way.
    pub(super) fn source(&self) -> Option<Fingerprint> {
        *self.source.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn secret(&self) -> &Secret {
        &self.secret
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_source_after_another_never_two() {
        let [destination, first, second] = [b"d", b"1", b"2"].map(|key| Fingerprint::of(key));
        let secret = Secret::random().unwrap();
        let admission = Authorization::new(secret.clone(), destination, None);
        let [one, two] = [first, second].map(|source| secret.prove(source, destination));
        let wrong = Secret::random().unwrap().prove(first, destination);
        assert_eq!(admission.judge(first, &wrong), Verdict::NotInvited);
        assert_eq!(admission.judge(first, &one), Verdict::Welcome);
        // No migration has begun yet.
        assert_eq!(admission.judge(second, &two), Verdict::Welcome);
        admission.bind(Some(first));
        assert_eq!(admission.judge(first, &one), Verdict::Welcome);
        assert_eq!(admission.judge(second, &two), Verdict::Used);
        // A proof for the first source's key, with another key.
        assert_eq!(admission.judge(second, &one), Verdict::NotInvited);
        admission.bind(None);
        assert_eq!(admission.judge(second, &two), Verdict::Welcome);
    }

    #[test]
    fn verdicts_travel_as_bytes() {
        for verdict in [Verdict::Welcome, Verdict::NotInvited, Verdict::Used] {
            assert_eq!(Verdict::from_byte(verdict.to_byte()), Some(verdict));
        }
        assert_eq!(Verdict::from_byte(0), None);
    }
}
