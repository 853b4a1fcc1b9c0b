//! Peers with an invitation.

use super::{handshake, invitation, refused};
use crate::tls::{DestinationCredentials, SecureError, SourceCredentials, TlsClient, TlsServer};

#[test]
fn an_invitation_is_valid_for_one_source() {
    let server = TlsServer::inviting().unwrap();
    let invitation = invitation(&server);
    let first = TlsClient::invited(&invitation).unwrap();
    let (.., source) = handshake(&first, &server);
    server.accept_only(source);
    let second = TlsClient::invited(&invitation).unwrap();
    let (near, far) = refused(&second, &server);
    assert!(matches!(near, SecureError::AlreadyUsed), "{near}");
    assert!(matches!(far, SecureError::Used), "{far}");
    // All links of the first source's migration are accepted, later ones as well.
    let (near, far, again) = handshake(&first, &server);
    assert!(near.is_ok() && far.is_ok());
    assert_eq!(again, source);
}

#[test]
fn both_sides_authenticate_again_after_a_restart() {
    let server = TlsServer::inviting().unwrap();
    let invitation = invitation(&server);
    let client = TlsClient::invited(&invitation).unwrap();
    let (.., source) = handshake(&client, &server);
    server.accept_only(source);
    let written = serde_json::to_string(&client.credentials().unwrap()).unwrap();
    let client: SourceCredentials = serde_json::from_str(&written).unwrap();
    let shown = format!("{client:?}");
    let client = client.client().unwrap();
    let kept = serde_json::to_string(&server.credentials().unwrap()).unwrap();
    let server: DestinationCredentials = serde_json::from_str(&kept).unwrap();
    let shown = format!("{shown} {server:?}");
    let server = server.server().unwrap();
    let (near, far, again) = handshake(&client, &server);
    assert!(near.is_ok() && far.is_ok());
    assert_eq!(again, source);
    // Other sources are still refused.
    let other = TlsClient::invited(&invitation).unwrap();
    assert!(matches!(refused(&other, &server).1, SecureError::Used));
    // The debug output contains no secret.
    for (record, secret) in [
        (&written, "key"),
        (&written, "proof"),
        (&kept, "key"),
        (&kept, "secret"),
    ] {
        let value: serde_json::Value = serde_json::from_str(record).unwrap();
        let value = find(&value, secret).unwrap();
        assert!(value.len() > 20, "{secret}: {value}");
        assert!(!shown.contains(value), "{secret} in {shown}");
    }
}

/// The text of a field at any depth.
fn find<'a>(value: &'a serde_json::Value, name: &str) -> Option<&'a str> {
    let fields = value.as_object()?;
    fields.iter().find_map(|(key, value)| {
        let text = value.as_str().filter(|_| key == name);
        text.or_else(|| find(value, name))
    })
}

#[test]
fn a_wrong_key_and_a_wrong_secret_have_errors_of_their_own() {
    let server = TlsServer::inviting().unwrap();
    let other = TlsServer::inviting().unwrap();
    let (near, far) = refused(&TlsClient::invited(&invitation(&other)).unwrap(), &server);
    assert!(matches!(near, SecureError::WrongKey), "{near}");
    // The source gets the reason.
    assert!(matches!(far, SecureError::OtherInvitation), "{far}");
    let mut mixed = invitation(&server);
    mixed.secret = invitation(&other).secret;
    let (near, far) = refused(&TlsClient::invited(&mixed).unwrap(), &server);
    assert!(matches!(near, SecureError::WrongSecret), "{near}");
    assert!(matches!(far, SecureError::NotInvited), "{far}");
}
