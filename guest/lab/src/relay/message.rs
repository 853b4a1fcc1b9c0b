//! What passes a relay.

use std::io::{self, Read};

use hikkoshi_wire::{
    CHALLENGE_LEN, Frame, HEADER_LEN, HELLO_LEN, Hello, Limits, Role, ToDestination, ToSource,
    decode_control, message_name,
};

use super::socket::RelaySocket;

/// The direction in which something passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Towards {
    /// From the source.
    Destination,
    /// From the destination.
    Source,
}

/// What is about to pass.
#[derive(Debug)]
pub struct Passing<'a> {
    /// The number of its connection, from 1 on.
    pub link: u32,
    /// Its direction.
    pub towards: Towards,
    /// What it is.
    pub part: Part,
    /// Its bytes, which may be changed.
    pub bytes: &'a mut [u8],
}

/// A part of what passes.
#[derive(Debug)]
pub enum Part {
    /// Some bytes, if the messages are not read.
    Bytes,
    /// The first message of either side on a link with this role, followed by the challenge of the
    /// destination.
    Hello(Role),
    /// A message after it.
    Message(Message),
}

/// A message of either side.
#[derive(Debug)]
pub struct Message {
    /// What its link is for.
    pub role: Role,
    /// Its direction.
    pub towards: Towards,
    /// Its frame.
    pub frame: Frame,
    /// The name of the frame, or of the control message in it.
    pub name: String,
    /// The control message, if the source sent it.
    pub control: Option<ToDestination>,
}

/// The first bytes that a side sends.
pub(super) struct Greeting {
    pub(super) role: Role,
    pub(super) bytes: Vec<u8>,
}

impl Greeting {
    /// The destination sends its challenge together with its hello.
    pub(super) fn read(mut from: &RelaySocket, towards: Towards) -> io::Result<Self> {
        let mut hello = [0; HELLO_LEN];
        from.read_exact(&mut hello)?;
        let role = Hello::decode(&hello).map_err(io::Error::other)?.role;
        let mut bytes = hello.to_vec();
        if towards == Towards::Source {
            bytes.extend(read_challenge(from)?);
        }
        Ok(Self { role, bytes })
    }
}

/// A challenge of the destination, or the source's answer.
pub(super) fn read_challenge(mut from: &RelaySocket) -> io::Result<[u8; CHALLENGE_LEN]> {
    let mut challenge = [0; CHALLENGE_LEN];
    from.read_exact(&mut challenge)?;
    Ok(challenge)
}

impl Message {
    /// Reads the next message, and its bytes.
    pub(super) fn read(
        mut from: &RelaySocket,
        role: Role,
        towards: Towards,
    ) -> io::Result<(Self, Vec<u8>)> {
        let mut header = [0; HEADER_LEN];
        from.read_exact(&mut header)?;
        let limits = Limits { pages: u64::MAX };
        let frame = Frame::decode(&header, &limits).map_err(io::Error::other)?;
        let mut body = vec![0; frame.payload_len()];
        from.read_exact(&mut body)?;
        let mut control = None;
        let name = match (frame, towards) {
            (Frame::Control { .. }, Towards::Destination) => {
                let message = decode_control::<ToDestination>(&body).map_err(io::Error::other)?;
                message_name(control.insert(message))
            }
            (Frame::Control { .. }, Towards::Source) => {
                message_name(&decode_control::<ToSource>(&body).map_err(io::Error::other)?)
            }
            _ => message_name(&frame),
        };
        let message = Self {
            role,
            towards,
            frame,
            name,
            control,
        };
        Ok((message, [&header[..], &body].concat()))
    }
}
