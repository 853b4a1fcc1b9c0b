//! Which source a destination with an invitation accepts.

use std::sync::{Mutex, PoisonError};

use crate::tls::fingerprint::Fingerprint;
use crate::tls::invitation::{Proof, Secret};

/// A destination's answer to a proof, one byte on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProofResult {
    /// The source is accepted.
    Accepted,
    /// The source does not know the secret.
    WrongSecret,
    /// Another source has used the invitation.
    Used,
}

impl ProofResult {
    pub(crate) fn to_byte(self) -> u8 {
        match self {
            Self::Accepted => 1,
            Self::WrongSecret => 2,
            Self::Used => 3,
        }
    }

    pub(crate) fn from_byte(byte: u8) -> Option<Self> {
        [Self::Accepted, Self::WrongSecret, Self::Used]
            .into_iter()
            .find(|verdict| verdict.to_byte() == byte)
    }
}

/// Decides which source is accepted: before a migration is under way, any invited source; from then
/// on, only the migration's source.
#[derive(Debug)]
pub(crate) struct Authorization {
    secret: Secret,
    destination: Fingerprint,
    source: Mutex<Option<Fingerprint>>,
}

impl Authorization {
    pub(crate) fn new(
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
    pub(crate) fn check(&self, source: Fingerprint, proof: &Proof) -> ProofResult {
        match self.source() {
            Some(known) if known == source => ProofResult::Accepted,
            _ if !self.secret.verify(source, self.destination, proof) => ProofResult::WrongSecret,
            Some(_) => ProofResult::Used,
            None => ProofResult::Accepted,
        }
    }

    /// Accepts from now on only `source`; `None`: any invited source.
    pub(crate) fn accept_only(&self, source: Option<Fingerprint>) {
        *self.source.lock().unwrap_or_else(PoisonError::into_inner) = source;
    }

    /// The source of the migration under way.
    pub(crate) fn source(&self) -> Option<Fingerprint> {
        *self.source.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn secret(&self) -> &Secret {
        &self.secret
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_source_at_a_time() {
        let [destination, first, second] = [b"d", b"1", b"2"].map(|key| Fingerprint::of_key(key));
        let secret = Secret::random().unwrap();
        let authorization = Authorization::new(secret.clone(), destination, None);
        let [one, two] = [first, second].map(|source| secret.prove(source, destination));
        let wrong = Secret::random().unwrap().prove(first, destination);
        assert_eq!(authorization.check(first, &wrong), ProofResult::WrongSecret);
        assert_eq!(authorization.check(first, &one), ProofResult::Accepted);
        // No migration has begun yet.
        assert_eq!(authorization.check(second, &two), ProofResult::Accepted);
        authorization.accept_only(Some(first));
        assert_eq!(authorization.check(first, &one), ProofResult::Accepted);
        assert_eq!(authorization.check(second, &two), ProofResult::Used);
        // A proof for the first source's key, with another key.
        assert_eq!(authorization.check(second, &one), ProofResult::WrongSecret);
        authorization.accept_only(None);
        assert_eq!(authorization.check(second, &two), ProofResult::Accepted);
    }

    #[test]
    fn a_verdict_is_one_byte() {
        for verdict in [
            ProofResult::Accepted,
            ProofResult::WrongSecret,
            ProofResult::Used,
        ] {
            assert_eq!(ProofResult::from_byte(verdict.to_byte()), Some(verdict));
        }
        assert_eq!(ProofResult::from_byte(0), None);
    }
}
