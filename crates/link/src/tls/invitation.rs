//! The invitation: how a source and a destination that do not know each other authenticate.

use std::fmt;
use std::str::FromStr;

use data_encoding::BASE64URL_NOPAD;
use thiserror::Error;

use crate::tls::fingerprint::{FINGERPRINT_LEN, Fingerprint};
use crate::tls::route::Route;
use crate::{Address, AddressError};

const SCHEME: &str = Invitation::SCHEME;

/// Bytes of the secret.
const SECRET_LEN: usize = 16;

/// A secret that the destination and the source that it invited share.
#[derive(Clone)]
pub(crate) struct Secret([u8; SECRET_LEN]);

/// The secret must not be logged.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// Bytes of a [`Proof`].
pub(crate) const PROOF_LEN: usize = 32;

/// Proves that the holder of the source's key knows the secret. It is valid only together with that
/// key.
#[derive(Clone)]
pub(crate) struct Proof(pub(crate) [u8; PROOF_LEN]);

impl Secret {
    /// Generates a secret with the kernel's random number generator.
    pub(crate) fn random() -> Result<Self, getrandom::Error> {
        let mut bytes = [0; SECRET_LEN];
        getrandom::fill(&mut bytes)?;
        Ok(Self(bytes))
    }

    /// The proof of the source with the key `source` for the destination with the key
    /// `destination`.
    pub(crate) fn prove(&self, source: Fingerprint, destination: Fingerprint) -> Proof {
        let tag = ring::hmac::sign(&self.key(), &statement(source, destination));
        let mut proof = [0; PROOF_LEN];
        proof.copy_from_slice(tag.as_ref());
        Proof(proof)
    }

    /// Whether `proof` was made with this secret and for these two keys, in constant time.
    pub(crate) fn verify(
        &self,
        source: Fingerprint,
        destination: Fingerprint,
        proof: &Proof,
    ) -> bool {
        ring::hmac::verify(&self.key(), &statement(source, destination), &proof.0).is_ok()
    }

    fn key(&self) -> ring::hmac::Key {
        ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &self.0)
    }
}

/// The message that a proof authenticates.
fn statement(source: Fingerprint, destination: Fingerprint) -> Vec<u8> {
    [&b"hikkoshi1 invited"[..], &source.0, &destination.0].concat()
}

/// `hikkoshi1:FINGERPRINT.SECRET@HOST:PORT`: all that `migrate` needs.
///
/// Anyone who has it can move a guest to that destination until a source has begun a migration.
/// Show it to the source's operator only.
#[derive(Clone)]
pub struct Invitation {
    pub(crate) fingerprint: Fingerprint,
    pub(crate) secret: Secret,
    address: Address,
}

impl Invitation {
    /// The prefix of an invitation; the number is the version of the format.
    pub const SCHEME: &str = "hikkoshi1:";

    pub(crate) fn new(fingerprint: Fingerprint, secret: Secret, address: Address) -> Self {
        Self {
            fingerprint,
            secret,
            address,
        }
    }

    /// The route to the destination, if several share its address.
    pub fn route(&self) -> Route {
        Route::to(self.fingerprint)
    }

    /// The address that the destination listens at.
    pub fn address(&self) -> &Address {
        &self.address
    }
}

impl fmt::Display for Invitation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{SCHEME}{}.{}@{}",
            BASE64URL_NOPAD.encode(&self.fingerprint.0),
            BASE64URL_NOPAD.encode(&self.secret.0),
            self.address
        )
    }
}

/// Without the secret, which must not be logged.
impl fmt::Debug for Invitation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Invitation")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

/// A text that is not an invitation. The messages do not repeat the text: it may contain a secret.
#[derive(Debug, Error)]
pub enum InvitationError {
    /// The prefix is missing.
    #[error(
        "this is not an invitation: an invitation begins with '{SCHEME}'; copy the complete line \
         that 'hikkoshi receive' printed"
    )]
    Scheme,
    /// The rest of the text is incomplete or mistyped.
    #[error(
        "the invitation is damaged: '{SCHEME}' must be followed by {FINGERPRINT_LEN} and {SECRET_LEN} \
         bytes in base64 with a dot between them, then '@' and the address; copy the complete line \
         that 'hikkoshi receive' printed"
    )]
    Damaged,
    /// The address in it is not an address.
    #[error("the invitation's address")]
    Address(#[from] AddressError),
}

impl FromStr for Invitation {
    type Err = InvitationError;

    fn from_str(text: &str) -> Result<Self, InvitationError> {
        let rest = text
            .trim()
            .strip_prefix(SCHEME)
            .ok_or(InvitationError::Scheme)?;
        let (keys, address) = rest.split_once('@').ok_or(InvitationError::Damaged)?;
        let (fingerprint, secret) = keys.split_once('.').ok_or(InvitationError::Damaged)?;
        Ok(Self {
            fingerprint: Fingerprint(bytes(fingerprint)?),
            secret: Secret(bytes(secret)?),
            address: address.parse()?,
        })
    }
}

fn bytes<const N: usize>(text: &str) -> Result<[u8; N], InvitationError> {
    BASE64URL_NOPAD
        .decode(text.as_bytes())
        .ok()
        .and_then(|bytes| bytes.try_into().ok())
        .ok_or(InvitationError::Damaged)
}

/// As text, in the alphabet of the invitation.
macro_rules! as_text {
    ($($bytes:ident),*) => {$(
        impl $bytes {
            pub(crate) fn text(&self) -> String {
                BASE64URL_NOPAD.encode(&self.0)
            }

            /// `None` if the text is damaged.
            pub(crate) fn from_text(text: &str) -> Option<Self> {
                bytes(text).ok().map(Self)
            }
        }
    )*};
}

as_text!(Fingerprint, Secret, Proof);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn invitation() -> Invitation {
        Invitation {
            fingerprint: Fingerprint::of_key(b"a key"),
            secret: Secret([7; SECRET_LEN]),
            address: "host.example:7000".parse().unwrap(),
        }
    }

    #[test]
    fn a_displayed_invitation_parses() {
        let shown = invitation().to_string();
        let read: Invitation = format!("  {shown}\n").parse().unwrap();
        assert_eq!(read.to_string(), shown);
        assert!(shown.len() < 80, "{} characters", shown.len());
        assert!(!format!("{read:?}").contains("BwcH"), "shows the secret");
    }

    proptest! {
        #[test]
        fn a_truncated_or_other_text_is_refused(text in "\\PC*", cut in 0_usize..60) {
            prop_assert!(text.parse::<Invitation>().is_err());
            let shown = invitation().to_string();
            let error = shown[..cut].parse::<Invitation>().unwrap_err();
            prop_assert!(!error.to_string().contains("BwcH"));
        }
    }

    #[test]
    fn a_proof_is_valid_for_one_secret_and_two_keys() {
        let secret = Secret([7; SECRET_LEN]);
        let [source, destination, other] = [b"a", b"b", b"c"].map(|key| Fingerprint::of_key(key));
        let proof = secret.prove(source, destination);
        assert!(secret.verify(source, destination, &proof));
        assert!(!secret.verify(other, destination, &proof));
        assert!(!secret.verify(source, other, &proof));
        assert!(!secret.verify(destination, source, &proof));
        assert!(!Secret([8; SECRET_LEN]).verify(source, destination, &proof));
    }
}
