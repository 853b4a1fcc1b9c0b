//! The network's task: it alone uses the card and the TCP/IP library.
//!
//! It handles what has arrived, moves bytes between the sockets and the connections' rings, sends
//! what is to be sent, and waits for the card's interrupt, for a connection's task, or for a TCP
//! timer. While it works, the card does not interrupt.

use super::card::Card;
use super::connection::{INPUT, OUTPUT, SEND};
use super::datagrams::Datagrams;
use super::{Connection, DATAGRAM, FILES, LINES};
use crate::clock::ticks;
use crate::config::{self, Config};
use crate::memory;
use crate::tasks::{Event, yield_to_others};
use core::ptr::with_exposed_provenance_mut;
use core::slice;
use core::sync::atomic::{AtomicBool, Ordering::*};
use smoltcp::iface::{
    Interface, PollIngressSingleResult, PollResult, SocketHandle, SocketSet, SocketStorage,
};
use smoltcp::socket::{tcp, udp};
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, IpCidr, Ipv4Address};

/// The card has interrupted, or a connection's task has sent or finished.
pub static WORK: Event = Event::new();
static READY: AtomicBool = AtomicBool::new(false);

/// Frames that are handled before what they cause is sent.
const FRAMES: usize = 64;
/// Room for datagrams: as many as arrive in so many frames.
const DATAGRAMS: usize = FRAMES;
/// Bytes of a TCP socket that have arrived, and wait for room in the connection's input.
const RECEIVE: usize = 2048;
/// The port of the server of files.
const FILES_PORT: u16 = 80;

/// Whether clients can connect.
pub fn is_ready() -> bool {
    READY.load(Acquire)
}

/// A connection's place, its socket, and the port.
type Served = (&'static Connection, SocketHandle, u16);

/// The entry of the network's task.
pub extern "C" fn run(_: usize) -> ! {
    match Network::start(config::get()) {
        Ok(mut network) => network.run(),
        Err(reason) => crate::fail(reason),
    }
}

struct Network {
    config: &'static Config,
    card: Card,
    interface: Interface,
    sockets: SocketSet<'static>,
    datagrams: Option<(SocketHandle, Datagrams)>,
    served: &'static mut [Option<Served>],
}

/// Memory for `count` values.
fn reserve<T>(count: usize, value: impl Fn() -> T) -> Result<&'static mut [T], &'static str> {
    let address = memory::reserve_zeroed(count * size_of::<T>())
        .ok_or("not enough memory for the network")?;
    let pointer = with_exposed_provenance_mut::<T>(address);
    for at in 0..count {
        // SAFETY: reserved, aligned to a page, and within the memory.
        unsafe { pointer.add(at).write(value()) };
    }
    // SAFETY: all values have been written; nothing else uses the memory.
    Ok(unsafe { slice::from_raw_parts_mut(pointer, count) })
}

fn bytes(count: usize) -> Result<&'static mut [u8], &'static str> {
    reserve(count, || 0)
}

impl Network {
    fn start(config: &'static Config) -> Result<Self, &'static str> {
        let options = &config.options;
        let address = options.net.ok_or("a server needs hk.net")?;
        let mut card = Card::start()?;
        let hardware = EthernetAddress(card.address);
        let mut settings = smoltcp::iface::Config::new(hardware.into());
        settings.random_seed = ticks();
        let mut interface = Interface::new(settings, &mut card, now(config));
        let ip = Ipv4Address::from(address.bytes);
        interface.update_ip_addrs(|addresses| {
            // There is room for one.
            let _ = addresses.push(IpCidr::new(ip.into(), address.prefix));
        });
        let lines = if options.serve { &LINES[..] } else { &[] };
        let files = if options.files > 0 { &FILES[..] } else { &[] };
        let count = lines.len() + files.len();
        let mut sockets = SocketSet::new(reserve(count + 1, || SocketStorage::EMPTY)?);
        let datagrams = match options.serve {
            true => Some((
                sockets.add(datagram_socket(options.port)?),
                Datagrams::new(),
            )),
            false => None,
        };
        let served = reserve(count, || None)?;
        let lines = lines.iter().map(|connection| (connection, options.port));
        let files = files.iter().map(|connection| (connection, FILES_PORT));
        // What the network's task touches for each connection is side by side: after a move, the
        // page that it waits for brings its neighbors.
        let mut receive = bytes(count * RECEIVE)?.chunks_exact_mut(RECEIVE);
        let mut send = bytes(count * SEND)?.chunks_exact_mut(SEND);
        let mut input = bytes(count * INPUT)?.chunks_exact_mut(INPUT);
        let mut output = bytes(count * OUTPUT)?.chunks_exact_mut(OUTPUT);
        for (place, (connection, port)) in served.iter_mut().zip(lines.chain(files)) {
            let buffers = (receive.next(), send.next(), input.next(), output.next());
            let (Some(receive), Some(send), Some(input), Some(output)) = buffers else {
                unreachable!("there is memory for each");
            };
            let [input, output, at] =
                [input, output, &mut *send].map(|memory| memory.as_mut_ptr().expose_provenance());
            connection.set_memory(input, output, at);
            let mut socket = tcp::Socket::new(
                tcp::SocketBuffer::new(receive),
                tcp::SocketBuffer::new(send),
            );
            socket.set_nagle_enabled(false);
            *place = Some((connection, sockets.add(socket), port));
        }
        Ok(Self {
            config,
            card,
            interface,
            sockets,
            datagrams,
            served,
        })
    }

    fn run(&mut self) -> ! {
        self.exchange();
        READY.store(true, Release);
        loop {
            self.card.disable_interrupt();
            let seen = WORK.count();
            let received = self.receive();
            let moved = self.exchange();
            self.send();
            if received || moved {
                // More may have arrived, and the connections' tasks have something to do.
                yield_to_others(ticks());
                continue;
            }
            self.card.enable_interrupt();
            if self.card.has_work() {
                // A frame has come meanwhile, or waits until the card has sent others.
                yield_to_others(ticks());
            } else {
                WORK.wait_until(seen, self.next_timer());
            }
        }
    }

    /// Handles frames that have arrived, up to a number; whether there were any.
    fn receive(&mut self) -> bool {
        let now = now(self.config);
        self.card.reclaim();
        let mut any = false;
        for _ in 0..FRAMES {
            let result = self
                .interface
                .poll_ingress_single(now, &mut self.card, &mut self.sockets);
            if matches!(result, PollIngressSingleResult::None) {
                break;
            }
            any = true;
        }
        if let Some((socket, datagrams)) = &mut self.datagrams {
            datagrams.answer(self.sockets.get_mut::<udp::Socket<'_>>(*socket));
        }
        any
    }

    /// Sends what the sockets have to send, as far as the card has room.
    fn send(&mut self) {
        let now = now(self.config);
        // Each socket sends one frame in a turn.
        while !matches!(
            self.interface
                .poll_egress(now, &mut self.card, &mut self.sockets),
            PollResult::None
        ) {}
        self.card.publish();
    }

    /// Moves bytes between sockets and connections; whether there were any.
    fn exchange(&mut self) -> bool {
        let mut any = false;
        for (connection, socket, port) in self.served.iter().flatten() {
            let socket = self.sockets.get_mut::<tcp::Socket<'_>>(*socket);
            any |= connection.exchange(socket, *port);
        }
        any
    }

    /// When the next timer of a socket ends, in ticks.
    fn next_timer(&mut self) -> u64 {
        if self.card.is_full() {
            // The card interrupts.
            return u64::MAX;
        }
        let now = now(self.config);
        let delay = self.interface.poll_delay(now, &self.sockets);
        delay.map_or(u64::MAX, |delay| {
            ticks() + self.config.clock.ticks_of_us(delay.total_micros())
        })
    }
}

/// The time since the start.
fn now(config: &Config) -> Instant {
    let us = config.clock.nanoseconds(ticks() - config.booted) / 1000;
    Instant::from_micros(i64::try_from(us).unwrap_or(i64::MAX))
}

fn datagram_socket(port: u16) -> Result<udp::Socket<'static>, &'static str> {
    let buffer = || -> Result<_, &'static str> {
        Ok(udp::PacketBuffer::new(
            reserve(DATAGRAMS, || udp::PacketMetadata::EMPTY)?,
            bytes(DATAGRAMS * DATAGRAM)?,
        ))
    };
    let mut socket = udp::Socket::new(buffer()?, buffer()?);
    socket.bind(port).map_err(|_| "hk.port is 0")?;
    Ok(socket)
}
