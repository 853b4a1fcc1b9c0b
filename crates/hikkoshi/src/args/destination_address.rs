//! `ADDR` of `migrate` and `estimate`.

use std::ffi::OsStr;

use clap::builder::TypedValueParser;
use clap::error::ErrorKind;
use hikkoshi_link::Address;
use hikkoshi_link::tls::Invitation;

use super::habits;

/// Parses an address. An invitation in its place is refused without repeating its secret, and is
/// not looked up as a host name.
#[derive(Debug, Clone, Copy)]
pub(super) struct DestinationAddress;

impl TypedValueParser for DestinationAddress {
    type Value = Address;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<Address, clap::Error> {
        if value.to_string_lossy().starts_with(Invitation::SCHEME) {
            let what = "this is an invitation, not an address: give it with --to\n";
            return Err(clap::Error::raw(ErrorKind::ValueValidation, what).with_cmd(command));
        }
        let address = |text: &str| match habits::address(text) {
            Some(what) => Err(format!("'{text}' {what}")),
            None => text.parse::<Address>().map_err(|error| error.to_string()),
        };
        address.parse_ref(command, arg, value)
    }
}
