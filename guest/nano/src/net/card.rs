//! The virtio network card, as the TCP/IP library uses one: frames are read and written where the
//! device has them.

use super::queue::{Queue, SIZE};
use super::virtio::Virtio;
use crate::memory;
use core::ptr::with_exposed_provenance_mut;
use core::slice;
use smoltcp::phy::{self, DeviceCapabilities, Medium};
use smoltcp::time::Instant;

/// Device numbers of a virtio-net card, with and without support for drivers of before virtio 1.0.
const DEVICES: [u16; 2] = [0x1000, 0x1041];
/// The feature that its address is in its registers.
const HAS_ADDRESS: u64 = 1 << 5;
const RECEIVE: u16 = 0;
const TRANSMIT: u16 = 1;

/// What precedes each frame (`virtio_net_hdr`, of virtio 1.0); all zero: nothing is offloaded.
const HEADER: usize = 12;
/// The longest frame, without a VLAN's tag.
const FRAME: usize = 1514;
/// Bytes of a buffer, of which two are in a page.
const BUFFER: u16 = 2048;

/// The card.
#[derive(Debug)]
pub struct Card {
    receive: Queue,
    transmit: Queue,
    /// Where its buffers begin: those to receive, and those to transmit.
    buffers: [usize; 2],
    /// Transmit buffers that the device does not have.
    free: [u16; SIZE as usize],
    free_count: usize,
    /// The address.
    pub address: [u8; 6],
}

impl Card {
    /// Finds the card, and starts it.
    pub fn start() -> Result<Self, &'static str> {
        let virtio = Virtio::find(&DEVICES, HAS_ADDRESS)?;
        let reserve = || {
            memory::reserve_zeroed(usize::from(SIZE) * usize::from(BUFFER))
                .ok_or("no memory for the network card's buffers")
        };
        let buffers = [reserve()?, reserve()?];
        let mut address = [0; 6];
        for (at, byte) in address.iter_mut().enumerate() {
            *byte = virtio.specific.read(at);
        }
        let mut card = Self {
            receive: virtio.queue(RECEIVE)?,
            transmit: virtio.queue(TRANSMIT)?,
            buffers,
            free: core::array::from_fn(|number| u16::try_from(number).unwrap_or(0)),
            free_count: usize::from(SIZE),
            address,
        };
        card.transmit.set_interrupt(false);
        virtio.start();
        for buffer in 0..SIZE {
            card.offer_to_receive(buffer);
        }
        card.receive.publish();
        Ok(card)
    }

    fn offer_to_receive(&mut self, buffer: u16) {
        let address = self.buffers[0] + usize::from(buffer) * usize::from(BUFFER);
        // SAFETY: a buffer of this card that the device does not have.
        unsafe {
            self.receive
                .offer(buffer, address as u64, BUFFER.into(), true);
        }
    }

    /// Takes back what has been transmitted. The buffer that was taken back last is used next, so
    /// few of them are touched.
    pub fn reclaim(&mut self) {
        while let Some((buffer, _)) = self.transmit.take() {
            self.free[self.free_count] = buffer;
            self.free_count += 1;
        }
    }

    /// Tells the device of everything since the last time.
    pub fn publish(&mut self) {
        self.transmit.publish();
        self.receive.publish();
    }

    /// Whether there is a frame to receive, or, if it has been waited for, room to transmit.
    pub fn has_work(&self) -> bool {
        self.receive.has_used() || (self.is_full() && self.transmit.has_used())
    }

    /// Whether every buffer to transmit is used.
    pub fn is_full(&self) -> bool {
        self.free_count == 0
    }

    /// Lets the card interrupt if a frame arrives, or, without a free buffer, if one gets free.
    pub fn enable_interrupt(&self) {
        self.receive.set_interrupt(true);
        self.transmit.set_interrupt(self.is_full());
    }

    /// Lets the card not interrupt.
    pub fn disable_interrupt(&self) {
        self.receive.set_interrupt(false);
        self.transmit.set_interrupt(false);
    }

    fn transmit_buffer(&mut self) -> Option<Transmit<'_>> {
        if self.free_count == 0 {
            self.reclaim();
        }
        self.free_count.checked_sub(1)?;
        Some(Transmit {
            queue: &mut self.transmit,
            free: &self.free,
            free_count: &mut self.free_count,
            buffers: self.buffers[1],
        })
    }
}

impl phy::Device for Card {
    type RxToken<'a> = Received;
    type TxToken<'a> = Transmit<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Received, Transmit<'_>)> {
        if self.free_count == 0 {
            self.reclaim();
        }
        if self.free_count == 0 {
            return None;
        }
        let (buffer, length) = self.receive.take()?;
        let address = self.buffers[0] + usize::from(buffer) * usize::from(BUFFER);
        // Offered at once, and published after it has been read.
        self.offer_to_receive(buffer);
        let received = Received {
            address,
            length: length.min(BUFFER.into()),
        };
        Some((received, self.transmit_buffer()?))
    }

    fn transmit(&mut self, _: Instant) -> Option<Transmit<'_>> {
        self.transmit_buffer()
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = FRAME;
        capabilities
    }
}

/// A frame that has been received.
#[derive(Debug)]
pub struct Received {
    address: usize,
    length: usize,
}

impl phy::RxToken for Received {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        // SAFETY: the device has written so many bytes, and does not write more until the next
        // `publish`.
        let bytes = unsafe {
            slice::from_raw_parts(with_exposed_provenance_mut::<u8>(self.address), self.length)
        };
        f(bytes.get(HEADER..).unwrap_or(&[]))
    }
}

/// A free buffer for a frame.
#[derive(Debug)]
pub struct Transmit<'a> {
    queue: &'a mut Queue,
    free: &'a [u16; SIZE as usize],
    free_count: &'a mut usize,
    buffers: usize,
}

impl phy::TxToken for Transmit<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, f: F) -> R {
        *self.free_count -= 1;
        let buffer = self.free[*self.free_count];
        let address = self.buffers + usize::from(buffer) * usize::from(BUFFER);
        let length = HEADER + length.min(FRAME);
        // SAFETY: a buffer of the card that the device does not have.
        let bytes = unsafe {
            slice::from_raw_parts_mut(with_exposed_provenance_mut::<u8>(address), length)
        };
        let result = f(&mut bytes[HEADER..]);
        // SAFETY: the same, and nothing touches it until it is taken back.
        unsafe {
            self.queue.offer(
                buffer,
                address as u64,
                u32::try_from(length).unwrap_or(0),
                false,
            );
        }
        result
    }
}
