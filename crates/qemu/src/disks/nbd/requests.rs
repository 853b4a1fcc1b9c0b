//! Which requests of an NBD client have no answer yet.

use std::collections::HashMap;

use hikkoshi_engine::{DiskRequests, Waiting};

use super::framing::{Framing, UnknownFraming, u16_at, u32_at, u64_at};
use super::{
    DISCONNECT, EXTENDED_REPLY, EXTENDED_REQUEST, FLUSH, GREETING, GREETING_LEN, OPTION_MAGIC,
    READ, REQUEST, SIMPLE_REPLY, STRUCTURED_REPLY, WRITE,
};

/// The option with which a client ends the negotiation, and the answer that lets it.
const OPTION_GO: u32 = 7;
const OPTION_ACK: u32 = 1;

/// The beginning of the answer to an option.
const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;

/// A flag of an extended request: its length is that of a payload.
const HAS_PAYLOAD: u16 = 1 << 5;

/// A flag of a chunk: it is the last one of its answer.
const DONE: u16 = 1;

/// Requests without a payload for more than this can take a disk long: to clear or to map so much.
const LONG_REQUEST_BYTES: u64 = 16 << 20;

/// More requests, or options, than QEMU has outstanding at once (16, and 1).
const MAX_OUTSTANDING: usize = 1024;

/// A flag of the answer to an option that refuses it. Such an answer is the last one, as
/// [`OPTION_ACK`] is.
const OPTION_ERROR: u32 = 1 << 31;

/// A request without an answer.
#[derive(Debug)]
struct Outstanding {
    /// A disk may take long for it.
    is_long: bool,
    /// Bytes that a simple answer brings.
    read: u64,
}

/// Follows both directions of an NBD connection of QEMU's, see [`DiskRequests`].
///
/// If a future QEMU speaks in a way that is not known here, it counts as waiting when it has sent
/// something since it last received something.
#[derive(Debug)]
pub(crate) struct NbdRequests {
    sent: Framing,
    received: Framing,
    /// What the server has sent before its answers.
    setup: Setup,
    outstanding: HashMap<u64, Outstanding>,
    /// Options without their last answer.
    options: usize,
    /// Something was sent since something was last received. Counts if it is not understood.
    asked: bool,
    /// The client's first bytes are its flags.
    flags_sent: bool,
    /// The client has ended the connection.
    is_over: bool,
    lost: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Setup {
    Greeting,
    Options,
    Done,
}

impl Default for NbdRequests {
    fn default() -> Self {
        Self {
            sent: Framing::default(),
            received: Framing::default(),
            setup: Setup::Greeting,
            outstanding: HashMap::new(),
            options: 0,
            asked: true,
            flags_sent: false,
            is_over: false,
            lost: false,
        }
    }
}

impl NbdRequests {
    fn note(&mut self, followed: Result<(), UnknownFraming>) {
        if followed.is_err() && !self.lost {
            self.lost = true;
            tracing::debug!("QEMU's NBD connection is not understood");
        }
    }

    fn follow_sent(&mut self, mut bytes: &[u8]) -> Result<(), UnknownFraming> {
        loop {
            let done = self.setup == Setup::Done;
            let is_flags = !self.flags_sent;
            let len = |header: &[u8]| match (is_flags, done) {
                (true, _) => Ok(4),
                (false, false) => Ok(16),
                (false, true) => len_of(header, &[(REQUEST, 28), (EXTENDED_REQUEST, 32)]),
            };
            let Some(header) = self.sent.next(&mut bytes, len)? else {
                return Ok(());
            };
            if is_flags {
                self.flags_sent = true;
            } else if done {
                self.request(&header)?;
            } else if header.starts_with(&OPTION_MAGIC) && self.options < MAX_OUTSTANDING {
                self.options += 1;
                self.sent.skip(u32_at(&header, 12).into());
            } else {
                return Err(UnknownFraming);
            }
        }
    }

    fn request(&mut self, header: &[u8]) -> Result<(), UnknownFraming> {
        let (flags, kind) = (u16_at(header, 4), u16_at(header, 6));
        let is_extended = u32_at(header, 0) == EXTENDED_REQUEST;
        let length = match is_extended {
            true => u64_at(header, 24),
            false => u32_at(header, 24).into(),
        };
        if kind == WRITE || (is_extended && flags & HAS_PAYLOAD != 0) {
            self.sent.skip(length);
        }
        if kind == DISCONNECT {
            self.is_over = true;
            return Ok(());
        }
        if self.outstanding.len() >= MAX_OUTSTANDING {
            return Err(UnknownFraming);
        }
        let is_long =
            kind == FLUSH || (!matches!(kind, READ | WRITE) && length > LONG_REQUEST_BYTES);
        let read = if kind == READ { length } else { 0 };
        let request = Outstanding { is_long, read };
        self.outstanding.insert(u64_at(header, 8), request);
        Ok(())
    }

    fn follow_received(&mut self, mut bytes: &[u8]) -> Result<(), UnknownFraming> {
        loop {
            let setup = self.setup;
            let len = |header: &[u8]| match setup {
                Setup::Greeting => Ok(GREETING_LEN),
                Setup::Options => Ok(20),
                Setup::Done => len_of(
                    header,
                    &[
                        (SIMPLE_REPLY, 16),
                        (STRUCTURED_REPLY, 20),
                        (EXTENDED_REPLY, 32),
                    ],
                ),
            };
            let Some(header) = self.received.next(&mut bytes, len)? else {
                return Ok(());
            };
            match setup {
                Setup::Greeting if header.starts_with(&GREETING) => self.setup = Setup::Options,
                Setup::Options if u64_at(&header, 0) == OPTION_REPLY => {
                    self.received.skip(u32_at(&header, 16).into());
                    let (option, kind) = (u32_at(&header, 8), u32_at(&header, 12));
                    if kind == OPTION_ACK || kind & OPTION_ERROR != 0 {
                        self.options = self.options.saturating_sub(1);
                    }
                    if (option, kind) == (OPTION_GO, OPTION_ACK) {
                        self.setup = Setup::Done;
                    }
                }
                Setup::Done => self.reply(&header),
                Setup::Greeting | Setup::Options => return Err(UnknownFraming),
            }
        }
    }

    fn reply(&mut self, header: &[u8]) {
        let cookie = u64_at(header, 8);
        let (length, is_last) = match u32_at(header, 0) {
            SIMPLE_REPLY => {
                let read = self.outstanding.get(&cookie).map_or(0, |one| one.read);
                (if u32_at(header, 4) == 0 { read } else { 0 }, true)
            }
            STRUCTURED_REPLY => (u32_at(header, 16).into(), u16_at(header, 4) & DONE != 0),
            _ => (u64_at(header, 24), u16_at(header, 4) & DONE != 0),
        };
        self.received.skip(length);
        if is_last {
            self.outstanding.remove(&cookie);
        }
    }
}

/// The length of a header that begins with one of these numbers.
fn len_of(header: &[u8], known: &[(u32, usize)]) -> Result<usize, UnknownFraming> {
    if header.len() < 4 {
        return Ok(4);
    }
    let magic = u32_at(header, 0);
    let found = known.iter().find(|(number, _)| *number == magic);
    found.map(|(_, len)| *len).ok_or(UnknownFraming)
}

impl DiskRequests for NbdRequests {
    fn sent(&mut self, bytes: &[u8]) {
        self.asked = true;
        if !self.lost {
            let followed = self.follow_sent(bytes);
            self.note(followed);
        }
    }

    fn received(&mut self, bytes: &[u8]) {
        self.asked = false;
        if !self.lost {
            let followed = self.follow_received(bytes);
            self.note(followed);
        }
    }

    fn waiting(&self) -> Waiting {
        let outstanding = &self.outstanding;
        match self.setup {
            _ if self.is_over => Waiting::Over,
            _ if self.lost && self.asked => Waiting::Request,
            _ if self.lost => Waiting::Nothing,
            // The server speaks first.
            Setup::Greeting => Waiting::Setup,
            Setup::Options if self.options > 0 => Waiting::Setup,
            _ if outstanding.is_empty() => Waiting::Nothing,
            _ if outstanding.values().all(|one| one.is_long) => Waiting::LongRequest,
            _ => Waiting::Request,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ZEROES: u16 = 6;

    fn request(kind: u16, cookie: u64, length: u32) -> Vec<u8> {
        let mut bytes = REQUEST.to_be_bytes().to_vec();
        bytes.extend([0, 0]);
        bytes.extend(kind.to_be_bytes());
        bytes.extend(cookie.to_be_bytes());
        bytes.extend(7u64.to_be_bytes());
        bytes.extend(length.to_be_bytes());
        if kind == WRITE {
            bytes.resize(28 + length as usize, 0x25);
        }
        bytes
    }

    fn extended_request(kind: u16, cookie: u64, length: u64) -> Vec<u8> {
        let mut bytes = EXTENDED_REQUEST.to_be_bytes().to_vec();
        let flags = if kind == WRITE { HAS_PAYLOAD } else { 0 };
        bytes.extend(flags.to_be_bytes());
        bytes.extend(kind.to_be_bytes());
        bytes.extend(cookie.to_be_bytes());
        bytes.extend(7u64.to_be_bytes());
        bytes.extend(length.to_be_bytes());
        if kind == WRITE {
            bytes.resize(32 + usize::try_from(length).unwrap(), 0x21);
        }
        bytes
    }

    fn simple_reply(cookie: u64, error: u32, data: usize) -> Vec<u8> {
        let mut bytes = SIMPLE_REPLY.to_be_bytes().to_vec();
        bytes.extend(error.to_be_bytes());
        bytes.extend(cookie.to_be_bytes());
        bytes.resize(16 + data, 0x67);
        bytes
    }

    fn chunk(cookie: u64, last: bool, data: u32) -> Vec<u8> {
        let mut bytes = STRUCTURED_REPLY.to_be_bytes().to_vec();
        bytes.extend(u16::from(last).to_be_bytes());
        bytes.extend([0, 1]);
        bytes.extend(cookie.to_be_bytes());
        bytes.extend(data.to_be_bytes());
        bytes.resize(20 + data as usize, 0x66);
        bytes
    }

    fn extended_chunk(cookie: u64, last: bool, data: u64) -> Vec<u8> {
        let mut bytes = EXTENDED_REPLY.to_be_bytes().to_vec();
        bytes.extend(u16::from(last).to_be_bytes());
        bytes.extend([0, 1]);
        bytes.extend(cookie.to_be_bytes());
        bytes.extend(0u64.to_be_bytes());
        bytes.extend(data.to_be_bytes());
        bytes.resize(32 + usize::try_from(data).unwrap(), 0x6e);
        bytes
    }

    fn option(number: u32, data: &[u8]) -> Vec<u8> {
        let mut bytes = OPTION_MAGIC.to_vec();
        bytes.extend(number.to_be_bytes());
        bytes.extend(u32::try_from(data.len()).unwrap().to_be_bytes());
        bytes.extend(data);
        bytes
    }

    fn option_reply(number: u32, kind: u32, data: &[u8]) -> Vec<u8> {
        let mut bytes = OPTION_REPLY.to_be_bytes().to_vec();
        bytes.extend(number.to_be_bytes());
        bytes.extend(kind.to_be_bytes());
        bytes.extend(u32::try_from(data.len()).unwrap().to_be_bytes());
        bytes.extend(data);
        bytes
    }

    /// A connection whose setup is complete.
    fn set_up() -> NbdRequests {
        let mut nbd = NbdRequests::default();
        assert_eq!(nbd.waiting(), Waiting::Setup, "for the greeting");
        nbd.received(&[&GREETING[..], &[0, 3]].concat());
        assert_eq!(nbd.waiting(), Waiting::Nothing);
        nbd.sent(&[&[0, 0, 0, 3][..], &option(8, &[])].concat());
        assert_eq!(nbd.waiting(), Waiting::Setup);
        nbd.received(&option_reply(8, OPTION_ACK, &[]));
        assert_eq!(nbd.waiting(), Waiting::Nothing);
        nbd.sent(&option(OPTION_GO, b"\0\0\0\x0fhikkoshi-disk-0\0\0"));
        // The server writes its answer in several parts.
        nbd.received(&option_reply(OPTION_GO, 3, &[0; 12]));
        assert_eq!(nbd.waiting(), Waiting::Setup);
        nbd.received(&option_reply(OPTION_GO, 3, &[0; 7])[..9]);
        assert_eq!(nbd.waiting(), Waiting::Setup);
        nbd.received(&option_reply(OPTION_GO, 3, &[0; 7])[9..]);
        assert_eq!(nbd.waiting(), Waiting::Setup);
        nbd.received(&option_reply(OPTION_GO, OPTION_ACK, &[]));
        assert_eq!(nbd.waiting(), Waiting::Nothing);
        nbd
    }

    /// A half of the greeting, and an option that is refused.
    #[test]
    fn the_setup_lasts_until_each_option_has_its_last_answer() {
        let mut nbd = NbdRequests::default();
        nbd.received(&GREETING[..5]);
        assert_eq!(nbd.waiting(), Waiting::Setup);
        nbd.received(&[&GREETING[5..], &[0, 3]].concat());
        assert_eq!(nbd.waiting(), Waiting::Nothing);
        nbd.sent(&[&[0, 0, 0, 3][..], &option(11, &[]), &option(8, &[])].concat());
        nbd.received(&option_reply(11, OPTION_ERROR | 1, b"no"));
        assert_eq!(nbd.waiting(), Waiting::Setup, "for the second one");
        nbd.received(&option_reply(8, OPTION_ACK, &[]));
        assert_eq!(nbd.waiting(), Waiting::Nothing);
    }

    #[test]
    fn a_request_is_outstanding_until_its_own_answer() {
        let mut nbd = set_up();
        nbd.sent(&request(WRITE, 1, 4096));
        nbd.sent(&extended_request(WRITE, 2, 70_000));
        nbd.received(&chunk(1, true, 0));
        // The last bytes were received, but one is not answered.
        assert_eq!(nbd.waiting(), Waiting::Request);
        nbd.received(&extended_chunk(2, false, 100));
        assert_eq!(nbd.waiting(), Waiting::Request);
        nbd.received(&extended_chunk(2, true, 0));
        assert_eq!(nbd.waiting(), Waiting::Nothing);
        nbd.sent(&request(READ, 3, 512));
        nbd.received(&simple_reply(3, 0, 512));
        nbd.sent(&request(READ, 4, 512));
        nbd.received(&simple_reply(4, 5, 0));
        assert_eq!(nbd.waiting(), Waiting::Nothing);
        nbd.sent(&request(DISCONNECT, 0, 0));
        assert_eq!(nbd.waiting(), Waiting::Over);
    }

    #[test]
    fn what_a_disk_needs_long_for_may_take_longer() {
        let mut nbd = set_up();
        nbd.sent(&request(FLUSH, 1, 0));
        nbd.sent(&request(ZEROES, 2, 1 << 30));
        assert_eq!(nbd.waiting(), Waiting::LongRequest);
        nbd.sent(&request(ZEROES, 3, 1 << 16));
        assert_eq!(nbd.waiting(), Waiting::Request);
        nbd.received(&simple_reply(3, 0, 0));
        assert_eq!(nbd.waiting(), Waiting::LongRequest);
    }

    #[test]
    fn an_unknown_format_is_followed_by_its_turns() {
        let mut nbd = set_up();
        nbd.sent(&[0; 28]);
        assert_eq!(nbd.waiting(), Waiting::Request);
        nbd.received(&[0; 99]);
        assert_eq!(nbd.waiting(), Waiting::Nothing);
        let mut nbd = set_up();
        for cookie in 0..=MAX_OUTSTANDING as u64 {
            nbd.sent(&request(FLUSH, cookie, 0));
        }
        assert!(nbd.lost && nbd.outstanding.len() <= MAX_OUTSTANDING);
    }

    proptest! {
        #[test]
        fn pieces_of_any_size_mean_the_same(sizes in prop::collection::vec(1usize..50, 1..40)) {
            let mut nbd = set_up();
            let sent = [
                request(WRITE, 1, 100),
                request(FLUSH, 2, 0),
                extended_request(WRITE, 3, 33),
                request(ZEROES, 4, 1),
            ].concat();
            let received = [
                chunk(1, false, 40),
                chunk(1, true, 0),
                simple_reply(2, 0, 0),
                extended_chunk(3, true, 12),
            ].concat();
            let mut sizes = sizes.into_iter().cycle();
            let mut rest = &sent[..];
            while !rest.is_empty() {
                let (piece, other) = rest.split_at(sizes.next().unwrap().min(rest.len()));
                nbd.sent(piece);
                rest = other;
            }
            prop_assert_eq!(nbd.outstanding.len(), 4);
            let mut rest = &received[..];
            while !rest.is_empty() {
                prop_assert_eq!(nbd.waiting(), Waiting::Request);
                let (piece, other) = rest.split_at(sizes.next().unwrap().min(rest.len()));
                nbd.received(piece);
                rest = other;
            }
            let left: Vec<_> = nbd.outstanding.keys().collect();
            prop_assert_eq!(left, [&4]);
            prop_assert!(!nbd.lost);
        }

        #[test]
        fn any_bytes_are_survived(pieces in prop::collection::vec(any::<(bool, Vec<u8>)>(), 0..20)) {
            let mut nbd = set_up();
            for (is_sent, bytes) in pieces {
                match is_sent {
                    true => nbd.sent(&bytes),
                    false => nbd.received(&bytes),
                }
                nbd.waiting();
            }
        }
    }
}
