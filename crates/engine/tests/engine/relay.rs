//! A relay between the two sides that understands the protocol, and can break the links at any
//! message.

use std::fmt;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use hikkoshi_link::Address;
use hikkoshi_wire::{
    CHALLENGE_LEN, Features, Frame, HEADER_LEN, HELLO_LEN, Hello, Limits, Role, ToDestination,
    ToSource, decode_control,
};

/// The direction of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Towards {
    Destination,
    Source,
}

/// A message in the relay.
#[derive(Debug)]
pub(crate) struct Passing {
    pub role: Role,
    pub towards: Towards,
    pub frame: Frame,
    /// The name of the frame, or of the control message in it.
    pub name: String,
    /// The control message, if the source sent it.
    pub control: Option<ToDestination>,
}

/// What the relay does with a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Pass,
    /// All links break before it.
    CutBefore,
    /// All links break after it: no answer to it passes.
    CutAfter,
    /// Half of it arrives, then all links break, as after `CutAfter`.
    CutInside,
    /// Its own link breaks before it.
    CutLink,
    /// It never arrives, and no link breaks.
    Drop,
}

pub(crate) type Policy = dyn Fn(&Passing) -> Fate + Send + Sync;

/// Listens in front of a destination and relays everything, as the policy decides.
pub(crate) struct Relay {
    path: PathBuf,
    shared: Arc<Shared>,
}

impl fmt::Debug for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relay").finish_non_exhaustive()
    }
}

struct Shared {
    links: Mutex<Vec<Arc<Link>>>,
    policy: Box<Policy>,
    limits: Limits,
    /// What passes of the destination's features.
    features: Features,
}

/// A connection on both sides of the relay.
struct Link {
    near: UnixStream,
    far: UnixStream,
    role: Role,
    /// Nothing passes any more.
    over: AtomicBool,
}

impl Link {
    /// The stream to read from and the stream to write to.
    fn ends(&self, towards: Towards) -> (&UnixStream, &UnixStream) {
        match towards {
            Towards::Destination => (&self.near, &self.far),
            Towards::Source => (&self.far, &self.near),
        }
    }

    fn close(&self) {
        for end in [&self.near, &self.far] {
            let _ = end.shutdown(Shutdown::Both);
        }
    }
}

impl Relay {
    pub(crate) fn new(
        folder: &Path,
        to: &Address,
        limits: Limits,
        features: Features,
        policy: impl Fn(&Passing) -> Fate + Send + Sync + 'static,
    ) -> Self {
        let path = folder.join("relay");
        let listener = UnixListener::bind(&path).unwrap();
        let Address::Unix(to) = to.clone() else {
            panic!("unix sockets only")
        };
        let shared = Arc::new(Shared {
            links: Mutex::default(),
            policy: Box::new(policy),
            limits,
            features,
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

    pub(crate) fn address(&self) -> Address {
        Address::Unix(self.path.clone())
    }

    pub(crate) fn cut(&self) {
        self.shared.stop().iter().for_each(|link| link.close());
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.cut();
        // Wakes the listening thread, which then fails to connect.
        let _ = UnixStream::connect(&self.path);
    }
}

impl Shared {
    /// Stops relaying on the present links, and returns them.
    fn stop(&self) -> Vec<Arc<Link>> {
        let links = std::mem::take(&mut *self.links.lock().unwrap());
        for link in &links {
            link.over.store(true, Ordering::SeqCst);
        }
        links
    }

    fn link(self: &Arc<Self>, near: UnixStream, far: UnixStream) {
        let this = Arc::clone(self);
        thread::spawn(move || {
            let mut hello = [0; HELLO_LEN];
            if (&near).read_exact(&mut hello).is_err() || (&far).write_all(&hello).is_err() {
                return;
            }
            let link = Arc::new(Link {
                near,
                far,
                role: Hello::decode(&hello).unwrap().role,
                over: AtomicBool::new(false),
            });
            this.links.lock().unwrap().push(Arc::clone(&link));
            let (back, backwards) = (Arc::clone(&this), Arc::clone(&link));
            thread::spawn(move || {
                let mut hello = [0; HELLO_LEN + CHALLENGE_LEN];
                back.carry(&backwards, Towards::Source, &mut hello);
            });
            this.carry(&link, Towards::Destination, &mut [0; CHALLENGE_LEN]);
        });
    }

    /// Relays one direction, first `greeting`, until the link ends.
    fn carry(&self, link: &Link, towards: Towards, greeting: &mut [u8]) {
        let (mut from, mut to) = link.ends(towards);
        if from.read_exact(greeting).is_ok() {
            if let Some(hello) = greeting.first_chunk_mut::<HELLO_LEN>() {
                let mut passing = Hello::decode(hello).unwrap();
                passing.features = passing.features.common(self.features);
                *hello = passing.encode();
            }
            if to.write_all(greeting).is_ok() {
                self.pump(link, towards);
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    }

    fn pump(&self, link: &Link, towards: Towards) {
        let (mut from, mut to) = link.ends(towards);
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
            let mut control = None;
            let name = match (frame, towards) {
                (Frame::Control { .. }, Towards::Destination) => {
                    let message = decode_control::<ToDestination>(&body).unwrap();
                    format!("{:?}", control.insert(message))
                }
                (Frame::Control { .. }, Towards::Source) => {
                    format!("{:?}", decode_control::<ToSource>(&body).unwrap())
                }
                _ => format!("{frame:?}"),
            };
            let name: String = name.chars().take_while(|c| c.is_alphanumeric()).collect();
            message.extend(body);
            let passing = Passing {
                role: link.role,
                towards,
                frame,
                name,
                control,
            };
            let fate = (self.policy)(&passing);
            if link.over.load(Ordering::SeqCst) {
                return;
            }
            let passes = match fate {
                Fate::Pass | Fate::CutAfter => &message[..],
                Fate::CutInside => &message[..message.len() / 2],
                Fate::CutBefore | Fate::CutLink | Fate::Drop => &[],
            };
            let cut = match fate {
                Fate::Pass | Fate::Drop | Fate::CutLink => Vec::new(),
                Fate::CutBefore | Fate::CutAfter | Fate::CutInside => self.stop(),
            };
            let passed = to.write_all(passes);
            cut.iter().for_each(|link| link.close());
            if fate == Fate::CutLink {
                link.close();
            }
            if passed.is_err() || !matches!(fate, Fate::Pass | Fate::Drop) {
                return;
            }
        }
    }
}
