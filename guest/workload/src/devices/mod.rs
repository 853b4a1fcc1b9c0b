//! The guest's devices beside disks and network cards: the command `devices` uses each of them, and
//! prints the results in a line.
//!
//! Only the random number generator and the TPM are waited for. From the tablet and the port, the
//! line has what has arrived since the command before. A device that the guest does not have is `-`
//! in the line; a device that fails is an error.

mod port;
mod screen;
mod tablet;
mod tpm;

use crate::system;
use port::Port;
use screen::Screen;
use std::fmt::{self, Display};
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use tablet::Tablet;
use tpm::Tpm;

/// The devices that are kept open, and what was done with them.
#[derive(Debug, Default)]
pub(crate) struct Devices {
    tablet: Tablet,
    port: Port,
    screen: Screen,
    tpm: Tpm,
}

impl Devices {
    /// Uses every device, and returns the line.
    pub(crate) fn line(&mut self) -> io::Result<String> {
        let tpm = self.tpm.read().map_err(of("the TPM"))?;
        let (tpm, pcr) = tpm.map(|tpm| (Hex(tpm.random), Hex(tpm.pcr))).unzip();
        Ok(format!(
            "devices: ok cpus={} memory_kib={} random={} tpm_random={} pcr={} tablet={} echoed={} \
             drawn={}",
            system::online_processors(),
            memory_kib().map_err(of("/proc/meminfo"))?,
            or_dash(random().map_err(of("the random number generator"))?),
            or_dash(tpm),
            or_dash(pcr),
            or_dash(self.tablet.position().map_err(of("the tablet"))?),
            or_dash(self.port.echo().map_err(of("the virtio-serial port"))?),
            or_dash(self.screen.draw().map_err(of("the screen"))?),
        ))
    }
}

fn of(device: &'static str) -> impl Fn(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("{device}: {error}"))
}

fn or_dash(value: Option<impl Display>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// None if there is no such file.
fn if_found<T>(opened: io::Result<T>) -> io::Result<Option<T>> {
    match opened {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

/// Bytes as hexadecimal digits.
struct Hex<const N: usize>([u8; N]);

impl<const N: usize> Display for Hex<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The end of what the hardware random number generator gives, more than its driver has buffered.
fn random() -> io::Result<Option<Hex<8>>> {
    let Some(mut file) = if_found(File::open("/dev/hwrng"))? else {
        return Ok(None);
    };
    let mut bytes = [0; 256];
    let mut last = [0; 8];
    let read = file.read_exact(&mut bytes);
    match read.and_then(|()| file.read_exact(&mut last)) {
        // The file exists without a generator, too.
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
        other => other.map(|()| Some(Hex(last))),
    }
}

/// The guest's memory, without what the balloon has taken.
fn memory_kib() -> io::Result<u64> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    text.lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))
        .and_then(|rest| rest.trim().strip_suffix(" kB")?.parse().ok())
        .ok_or_else(|| io::Error::other("it has no MemTotal"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_printed_or_a_dash() {
        assert_eq!(or_dash(Some(Hex([0, 0xab]))), "00ab");
        assert_eq!(or_dash(None::<u64>), "-");
        assert!(memory_kib().unwrap() > 0);
        assert!(if_found(File::open("/no/such/file")).unwrap().is_none());
    }
}
