//! A packet socket on one interface.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice, socket_with};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use thiserror::Error;

use crate::network_frame::{MAX_NETWORK_FRAME, NetworkFrame, OFFLOAD_LEN};
use crate::system_calls;
use crate::unread::Captured;

/// The size of a socket's receive buffer, in MiB of the kernel's accounting (about 0.8 KiB for a
/// small frame).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BufferMib(pub u8);

/// A packet socket on one interface: sees the frames that the host transmits on it, and transmits
/// frames.
#[derive(Debug)]
pub struct PacketSocket {
    socket: OwnedFd,
    interface: u32,
    buffer: Vec<u8>,
}

/// Why a packet socket could not be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The thread that enters the namespace.
    #[error("starting a thread for the namespace of QEMU's network")]
    Thread(#[source] io::Error),
    /// The namespace.
    #[error("entering the namespace of QEMU's network (this needs CAP_SYS_ADMIN)")]
    Namespace(#[source] io::Error),
    /// The socket itself.
    #[error("opening a packet socket (this needs CAP_NET_RAW)")]
    Socket(#[source] io::Error),
    /// One of its options.
    #[error("setting the options of a packet socket")]
    Option(#[source] io::Error),
    /// No such interface.
    #[error(
        "finding the interface {name} (if it is in another network namespace than QEMU, this needs \
         CAP_NET_ADMIN)"
    )]
    Interface {
        /// Its name.
        name: String,
        /// Why.
        source: io::Error,
    },
}

impl PacketSocket {
    /// Opens a socket for the interface `name` in the network namespace `namespace` (a file of
    /// `/proc/PID/ns/net`); `None`: the caller's. It sees the frames for one queue of the device,
    /// or those for all, as many as `buffer` holds until they are read. No frame arrives before
    /// [`start`](Self::start).
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(
        namespace: Option<BorrowedFd<'_>>,
        name: &str,
        queue: Option<u16>,
        buffer: BufferMib,
    ) -> Result<Self, OpenError> {
        let Some(namespace) = namespace else {
            return Self::open_here(name, queue, buffer);
        };
        // Another thread enters, so that this one stays where it is.
        thread::scope(|scope| {
            thread::Builder::new()
                .name("netns".into())
                .spawn_scoped(scope, || {
                    move_into_link_name_space(namespace, Some(LinkNameSpaceType::Network))
                        .map_err(|error| OpenError::Namespace(error.into()))?;
                    Self::open_here(name, queue, buffer)
                })
                .map_err(OpenError::Thread)?
                .join()
                .unwrap_or_else(|_| Err(OpenError::Thread(io::Error::other("the thread panicked"))))
        })
    }

    fn open_here(name: &str, queue: Option<u16>, buffer: BufferMib) -> Result<Self, OpenError> {
        // Protocol 0: the socket receives nothing until it is bound.
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)
            .map_err(|error| OpenError::Socket(error.into()))?;
        let interface =
            netdevice::name_to_index(&socket, name).map_err(|error| OpenError::Interface {
                name: name.to_owned(),
                source: error.into(),
            })?;
        let fd = socket.as_fd();
        let buffer = i32::from(buffer.0) << 20;
        let set_options = || {
            let (packet, any) = (libc::SOL_PACKET, libc::SOL_SOCKET);
            system_calls::attach_transmit_filter(fd, queue)?;
            system_calls::set_option(fd, packet, libc::PACKET_VNET_HDR, &1i32)?;
            system_calls::set_option(fd, packet, libc::PACKET_AUXDATA, &1i32)?;
            system_calls::set_option(fd, any, libc::SO_TIMESTAMPNS, &1i32)?;
            // Beyond the system's limit only with CAP_NET_ADMIN.
            system_calls::set_option(fd, any, libc::SO_RCVBUFFORCE, &buffer)
                .or_else(|_| system_calls::set_option(fd, any, libc::SO_RCVBUF, &buffer))
        };
        set_options().map_err(OpenError::Option)?;
        Ok(Self {
            socket,
            interface,
            buffer: vec![0; MAX_NETWORK_FRAME],
        })
    }

    /// From now on frames arrive. Takes about 20 µs.
    ///
    /// # Errors
    /// As `bind(2)`.
    pub fn start(&self) -> io::Result<()> {
        system_calls::bind(self.socket.as_fd(), self.interface)
    }

    /// The next frame; `None` if there is none at present. A frame that is too long is skipped.
    ///
    /// # Errors
    /// As `recvmsg(2)`; `ENETDOWN` once after the interface was set down.
    pub fn receive(&mut self) -> io::Result<Option<Captured>> {
        loop {
            let mut offload = [0; OFFLOAD_LEN];
            let received = system_calls::receive(
                self.socket.as_fd(),
                &mut offload,
                self.buffer.as_mut_slice(),
            );
            let received = match received {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            let len = received.len.saturating_sub(OFFLOAD_LEN);
            let Some(bytes) = self.buffer.get(..len) else {
                continue;
            };
            let mut frame = NetworkFrame {
                offload,
                bytes: bytes.to_vec(),
            };
            if let Some((protocol, control)) = received.tag {
                frame.insert_tag(protocol, control);
            }
            if frame.bytes.len() > MAX_NETWORK_FRAME {
                continue;
            }
            return Ok(Some(Captured {
                at: received.time.unwrap_or_default(),
                frame,
            }));
        }
    }

    /// Waits until a frame is there, at most `limit`.
    ///
    /// # Errors
    /// As `poll(2)`.
    pub fn wait(sockets: &[&Self], limit: Duration) -> io::Result<()> {
        let mut polled: Vec<_> = sockets
            .iter()
            .map(|socket| PollFd::new(&socket.socket, PollFlags::IN))
            .collect();
        let limit = Timespec::try_from(limit).map_err(io::Error::other)?;
        match poll(&mut polled, Some(&limit)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Transmits a frame on the interface, for the guest behind it.
    ///
    /// # Errors
    /// As `packet(7)`: `ENOBUFS` when the device's queue is full, `EMSGSIZE` when the frame is
    /// longer than its MTU, `EINVAL` for an impossible [`offload`](NetworkFrame::offload).
    pub fn transmit(&self, frame: &NetworkFrame) -> io::Result<()> {
        let mut message = Vec::with_capacity(OFFLOAD_LEN + frame.bytes.len());
        message.extend_from_slice(&frame.offload);
        message.extend_from_slice(&frame.bytes);
        rustix::net::send(&self.socket, &message, rustix::net::SendFlags::empty())?;
        Ok(())
    }

    /// Frames that did not fit into the receive buffer since the last call.
    pub fn take_drops(&self) -> u64 {
        system_calls::take_drops(self.socket.as_fd()).map_or(0, u64::from)
    }
}
