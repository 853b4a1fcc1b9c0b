//! The system calls of packet sockets and tun devices that rustix does not have.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// A message from a packet socket.
#[derive(Debug, Default)]
pub(crate) struct Received {
    /// The length of the message, which may be longer than the buffer.
    pub(crate) len: usize,
    /// Nanoseconds since 1970, on the host's clock.
    pub(crate) time: Option<u64>,
    /// The VLAN tag that the kernel stores beside the frame: protocol and control.
    pub(crate) tag: Option<(u16, u16)>,
}

/// `struct tpacket_auxdata` in `linux/if_packet.h`: status and three lengths.
const AUXDATA_LEN: usize = 20;
/// `TP_STATUS_VLAN_VALID`, `TP_STATUS_VLAN_TPID_VALID`
const VLAN_VALID: u32 = 1 << 4;
const PROTOCOL_VALID: u32 = 1 << 6;
/// The protocol of an ordinary VLAN tag.
const VLAN: u16 = 0x8100;

/// Sets an option of a socket to `value`.
pub(crate) fn set_option<T>(
    socket: BorrowedFd<'_>,
    level: i32,
    name: i32,
    value: &T,
) -> io::Result<()> {
    let len = libc::socklen_t::try_from(size_of::<T>()).map_err(io::Error::other)?;
    // SAFETY: the kernel reads `len` bytes at `value`, which has that many. `T` of a program for a
    // filter contains a pointer, see `attach_filter`.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            std::ptr::from_ref(value).cast(),
            len,
        )
    };
    check(result)
}

/// Lets only frames into a socket that this host transmits, not those that it receives; of these
/// only those for one queue of the device, if `queue` is given.
pub(crate) fn attach_transmit_filter(socket: BorrowedFd<'_>, queue: Option<u16>) -> io::Result<()> {
    let step = |code: u32, jf, k| libc::sock_filter {
        code: u16::try_from(code).unwrap_or_default(),
        jt: 0,
        jf,
        k,
    };
    let load =
        |size: u32, what: u32| step(libc::BPF_LD | size | libc::BPF_ABS, 0, SKF_AD_OFF + what);
    // The last step drops the frame.
    let unless = |value, others| step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, others, value);
    let result = |len| step(libc::BPF_RET | libc::BPF_K, 0, len);
    let (whole, nothing) = (result(u32::MAX), result(0));
    let pkttype = load(libc::BPF_B, SKF_AD_PKTTYPE);
    let mut steps = match queue {
        None => vec![pkttype, unless(OUTGOING, 1), whole, nothing],
        Some(queue) => vec![
            pkttype,
            unless(OUTGOING, 3),
            load(libc::BPF_W, SKF_AD_QUEUE),
            unless(queue.into(), 1),
            whole,
            nothing,
        ],
    };
    let program = libc::sock_fprog {
        len: u16::try_from(steps.len()).map_err(io::Error::other)?,
        filter: steps.as_mut_ptr(),
    };
    // `steps` lives until the call has returned; the kernel copies it.
    set_option(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
}

/// `SKF_AD_OFF`, -0x1000, `SKF_AD_PKTTYPE` and `SKF_AD_QUEUE` in `linux/filter.h`: a filter reads
/// the type of a packet there, and the queue of the device that the host has chosen for it.
const SKF_AD_OFF: u32 = 0xffff_f000;
const SKF_AD_PKTTYPE: u32 = 4;
const SKF_AD_QUEUE: u32 = 24;
/// `PACKET_OUTGOING` in `linux/if_packet.h`
const OUTGOING: u32 = 4;

/// Binds a packet socket to the interface with this index, for all protocols. From then on frames
/// arrive at it.
pub(crate) fn bind(socket: BorrowedFd<'_>, interface: u32) -> io::Result<()> {
    let every_protocol = u16::try_from(libc::ETH_P_ALL).map_err(io::Error::other)?;
    let address = libc::sockaddr_ll {
        sll_family: u16::try_from(libc::AF_PACKET).map_err(io::Error::other)?,
        sll_protocol: every_protocol.to_be(),
        sll_ifindex: i32::try_from(interface).map_err(io::Error::other)?,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    let len = libc::socklen_t::try_from(size_of_val(&address)).map_err(io::Error::other)?;
    // SAFETY: the kernel reads `len` bytes at `address`, which has that many.
    let result =
        unsafe { libc::bind(socket.as_raw_fd(), std::ptr::from_ref(&address).cast(), len) };
    check(result)
}

/// Reads one message with its time and VLAN tag; does not wait.
pub(crate) fn receive(
    socket: BorrowedFd<'_>,
    offload: &mut [u8],
    bytes: &mut [u8],
) -> io::Result<Received> {
    let mut parts = [offload, bytes].map(|part| libc::iovec {
        iov_base: part.as_mut_ptr().cast(),
        iov_len: part.len(),
    });
    // u64, so that control messages are aligned.
    let mut control = [0u64; 16];
    // SAFETY: zero is a valid value of every field.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = parts.len() as _;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    // SAFETY: all pointers in `message` are valid for their lengths, and nothing else uses what
    // they point to during the call.
    let len = unsafe {
        libc::recvmsg(
            socket.as_raw_fd(),
            &raw mut message,
            libc::MSG_DONTWAIT | libc::MSG_TRUNC,
        )
    };
    let len = usize::try_from(len).map_err(|_| io::Error::last_os_error())?;
    let mut received = Received {
        len,
        ..Received::default()
    };
    // SAFETY: the kernel has filled in `message`, whose control buffer is still there.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    while !next.is_null() {
        // SAFETY: `next` points to a whole header in the control buffer (CMSG_FIRSTHDR,
        // CMSG_NXTHDR).
        let header = unsafe { next.read_unaligned() };
        // SAFETY: as above.
        let data = unsafe { libc::CMSG_DATA(next) };
        let stated = header.cmsg_len as usize;
        // SAFETY: only the length of an empty control message is computed.
        let payload = stated.saturating_sub(unsafe { libc::CMSG_LEN(0) } as usize);
        // SAFETY: the kernel wrote `payload` bytes there, within the control buffer.
        let data = unsafe { std::slice::from_raw_parts(data, payload) };
        match (header.cmsg_level, header.cmsg_type) {
            (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) => received.time = time(data),
            (libc::SOL_PACKET, libc::PACKET_AUXDATA) => received.tag = tag(data),
            _ => {}
        }
        // SAFETY: `message` and `next` are as the kernel left them.
        next = unsafe { libc::CMSG_NXTHDR(&raw const message, next) };
    }
    Ok(received)
}

/// A `struct timespec` as nanoseconds.
fn time(data: &[u8]) -> Option<u64> {
    let (seconds, rest) = data.split_first_chunk::<8>()?;
    let (nanos, _) = rest.split_first_chunk::<8>()?;
    u64::from_ne_bytes(*seconds)
        .checked_mul(1_000_000_000)?
        .checked_add(u64::from_ne_bytes(*nanos))
}

/// The VLAN tag in a `struct tpacket_auxdata`.
fn tag(data: &[u8]) -> Option<(u16, u16)> {
    let data: &[u8; AUXDATA_LEN] = data.first_chunk()?;
    let status = u32::from_ne_bytes(*data.first_chunk()?);
    let [.., control_low, control_high, protocol_low, protocol_high] = *data;
    if status & VLAN_VALID == 0 {
        return None;
    }
    let protocol = if status & PROTOCOL_VALID == 0 {
        VLAN
    } else {
        u16::from_ne_bytes([protocol_low, protocol_high])
    };
    Some((protocol, u16::from_ne_bytes([control_low, control_high])))
}

/// Frames that did not fit into the buffer of a packet socket since the last call.
pub(crate) fn take_drops(socket: BorrowedFd<'_>) -> io::Result<u32> {
    let mut counts = [0u32; 2];
    let mut len = libc::socklen_t::try_from(size_of_val(&counts)).map_err(io::Error::other)?;
    // SAFETY: the kernel writes at most `len` bytes to `counts`, which has that many.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_STATISTICS,
            counts.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    check(result)?;
    Ok(counts[1])
}

/// The length of the header in front of each frame that is read from a tun device; 0 if there is
/// none.
pub(crate) fn tun_header_len(device: BorrowedFd<'_>) -> io::Result<usize> {
    // SAFETY: zero is a valid value of every field.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // SAFETY: TUNGETIFF fills in the whole `ifreq`, and nothing else.
    check(unsafe { libc::ioctl(device.as_raw_fd(), libc::TUNGETIFF as _, &raw mut request) })?;
    // SAFETY: TUNGETIFF has set the flags.
    let flags = i32::from(unsafe { request.ifr_ifru.ifru_flags });
    if flags & libc::IFF_VNET_HDR == 0 {
        return Ok(0);
    }
    let mut len: libc::c_int = 0;
    // SAFETY: TUNGETVNETHDRSZ writes an int.
    check(unsafe { libc::ioctl(device.as_raw_fd(), libc::TUNGETVNETHDRSZ as _, &raw mut len) })?;
    usize::try_from(len).map_err(io::Error::other)
}

/// `TUNGETDEVNETNS` in `linux/if_tun.h`.
const TUNGETDEVNETNS: libc::c_ulong = 0x54e3;

/// The network namespace that a tun device is in. Needs `CAP_NET_ADMIN` there.
pub(crate) fn tun_namespace(device: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: TUNGETDEVNETNS has no argument.
    let opened = unsafe { libc::ioctl(device.as_raw_fd(), TUNGETDEVNETNS as _) };
    if opened < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has opened this descriptor for the caller.
    Ok(unsafe { OwnedFd::from_raw_fd(opened) })
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_messages_are_decoded() {
        let mut times = 5u64.to_ne_bytes().to_vec();
        times.extend(7u64.to_ne_bytes());
        assert_eq!(time(&times), Some(5_000_000_007));
        assert_eq!(time(&times[..15]), None);
        let auxdata = |status: u32| {
            let mut data = status.to_ne_bytes().to_vec();
            data.extend([0; 12]);
            data.extend(0x2007u16.to_ne_bytes());
            data.extend(0x88a8u16.to_ne_bytes());
            data
        };
        assert_eq!(tag(&auxdata(0)), None);
        assert_eq!(tag(&auxdata(VLAN_VALID)), Some((VLAN, 0x2007)));
        let both = auxdata(VLAN_VALID | PROTOCOL_VALID);
        assert_eq!(tag(&both), Some((0x88a8, 0x2007)));
        assert_eq!(tag(&both[..19]), None);
    }
}
