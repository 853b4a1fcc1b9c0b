//! A network between the two sides that can break at any message.

use std::fmt;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;

use hikkoshi_engine::link::Address;
use hikkoshi_wire::{
    CHALLENGE_LEN, Frame, HEADER_LEN, HELLO_LEN, Hello, Limits, Role, ToDestination, ToSource,
    decode_control,
};

/// Which way a message travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Towards {
    Destination,
    Source,
}

/// A message on its way.
#[derive(Debug)]
pub struct Passing {
    pub role: Role,
    pub towards: Towards,
    pub frame: Frame,
    /// The name of the frame, or of the control message that it holds.
    pub name: String,
    /// The source's control message.
    pub said: Option<ToDestination>,
}

/// What becomes of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Pass,
    /// All links break before it.
    CutBefore,
    /// All links break after it.
    CutAfter,
    /// Half of it arrives, then all links break.
    Tear,
    /// The link it is on breaks before it.
    CutLink,
    /// It never arrives, and nobody is told.
    Swallow,
}

pub type Policy = dyn Fn(&Passing) -> Fate + Send + Sync;

/// Listens in front of a destination and passes everything on, as long as the
/// policy lets it.
pub struct Relay {
    path: PathBuf,
    shared: Arc<Shared>,
}

impl fmt::Debug for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relay").finish_non_exhaustive()
    }
}

struct Shared {
    streams: Mutex<Vec<UnixStream>>,
    policy: Box<Policy>,
    limits: Limits,
}

impl Relay {
    pub fn new(
        folder: &Path,
        to: &Address,
        limits: Limits,
        policy: impl Fn(&Passing) -> Fate + Send + Sync + 'static,
    ) -> Self {
        let path = folder.join("relay");
        let listener = UnixListener::bind(&path).unwrap();
        let Address::Unix(to) = to.clone() else {
            panic!("unix sockets only")
        };
        let shared = Arc::new(Shared {
            streams: Mutex::default(),
            policy: Box::new(policy),
            limits,
        });
        let serving = Arc::clone(&shared);
        thread::spawn(move || {
            for near in listener.incoming() {
                let (Ok(near), Ok(far)) = (near, UnixStream::connect(&to)) else {
                    return;
                };
                serving.link(near, far);
            }
        });
        Self { path, shared }
    }

    pub fn address(&self) -> Address {
        Address::Unix(self.path.clone())
    }

    pub fn cut(&self) {
        self.shared.cut();
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.cut();
        // Wakes the listening thread, which finds nobody to connect to.
        let _ = UnixStream::connect(&self.path);
    }
}

impl Shared {
    fn cut(&self) {
        for stream in self.streams.lock().unwrap().iter() {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }

    fn link(self: &Arc<Self>, near: UnixStream, far: UnixStream) {
        let ends = [near.try_clone().unwrap(), far.try_clone().unwrap()];
        self.streams.lock().unwrap().extend(ends);
        let (near2, far2) = (near.try_clone().unwrap(), far.try_clone().unwrap());
        let this = Arc::clone(self);
        thread::spawn(move || {
            let mut near = near;
            let mut hello = [0; HELLO_LEN];
            if near.read_exact(&mut hello).is_err() {
                return;
            }
            let role = Hello::decode(&hello).unwrap().role;
            if (&far).write_all(&hello).is_err() {
                return;
            }
            let back = Arc::clone(&this);
            thread::spawn(move || {
                let mut hello = [0; HELLO_LEN + CHALLENGE_LEN];
                if (&far2).read_exact(&mut hello).is_ok() && (&near2).write_all(&hello).is_ok() {
                    back.pump(role, Towards::Source, &far2, &near2);
                }
                let _ = near2.shutdown(std::net::Shutdown::Both);
            });
            let mut challenge = [0; CHALLENGE_LEN];
            if near.read_exact(&mut challenge).is_ok() && (&far).write_all(&challenge).is_ok() {
                this.pump(role, Towards::Destination, &near, &far);
            }
            let _ = far.shutdown(std::net::Shutdown::Both);
        });
    }

    fn pump(&self, role: Role, towards: Towards, mut from: &UnixStream, mut to: &UnixStream) {
        loop {
            let mut message = vec![0; HEADER_LEN];
            if from.read_exact(&mut message).is_err() {
                return;
            }
            let header: [u8; HEADER_LEN] = message[..].try_into().unwrap();
            let frame = Frame::decode(&header, &self.limits).unwrap();
            let mut body = vec![0; frame.payload_len()];
            if from.read_exact(&mut body).is_err() {
                return;
            }
            let mut said = None;
            let name = match (frame, towards) {
                (Frame::Control { .. }, Towards::Destination) => {
                    let message = decode_control::<ToDestination>(&body).unwrap();
                    format!("{:?}", said.insert(message))
                }
                (Frame::Control { .. }, Towards::Source) => {
                    format!("{:?}", decode_control::<ToSource>(&body).unwrap())
                }
                _ => format!("{frame:?}"),
            };
            let name: String = name.chars().take_while(|c| c.is_alphanumeric()).collect();
            message.extend(body);
            let passing = Passing {
                role,
                towards,
                frame,
                name,
                said,
            };
            match (self.policy)(&passing) {
                Fate::Pass => {
                    if to.write_all(&message).is_err() {
                        return;
                    }
                }
                Fate::Swallow => {}
                Fate::CutBefore => return self.cut(),
                Fate::CutAfter => {
                    let _ = to.write_all(&message);
                    return self.cut();
                }
                Fate::Tear => {
                    let _ = to.write_all(&message[..message.len() / 2]);
                    return self.cut();
                }
                Fate::CutLink => {
                    let _ = from.shutdown(std::net::Shutdown::Both);
                    let _ = to.shutdown(std::net::Shutdown::Both);
                    return;
                }
            }
        }
    }
}
