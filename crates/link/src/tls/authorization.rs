//! Which source an inviting destination lets in.

use std::sync::{Mutex, PoisonError};

use super::invitation::{Fingerprint, Proof, Secret};

/// What a destination answers to a proof, as one byte on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is let in.
    Welcome,
    /// It does not know the secret.
    NotInvited,
    /// The invitation was used by somebody else.
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

/// Who may come in: until a migration is under way, whoever was invited; from
/// then on, its source only.
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

    /// Judges a source that has shown to have the key `source`.
    pub(super) fn judge(&self, source: Fingerprint, proof: &Proof) -> Verdict {
        match self.source() {
            Some(known) if known == source => Verdict::Welcome,
            _ if !self.secret.verify(source, self.destination, proof) => Verdict::NotInvited,
            Some(_) => Verdict::Used,
            None => Verdict::Welcome,
        }
    }

    /// From now on only `source` is let in; `None`: whoever was invited.
    pub(super) fn bind(&self, source: Option<Fingerprint>) {
        *self.source.lock().unwrap_or_else(PoisonError::into_inner) = source;
    }

    /// Whose migration is under way.
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
        // Nothing has come of it yet.
        assert_eq!(admission.judge(second, &two), Verdict::Welcome);
        admission.bind(Some(first));
        assert_eq!(admission.judge(first, &one), Verdict::Welcome);
        assert_eq!(admission.judge(second, &two), Verdict::Used);
        // Somebody else's proof with one's own key.
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
