//! A TPM 2.0, by three commands (TPM 2.0 Library, part 3: `TPM2_GetRandom`, `TPM2_PCR_Extend`,
//! `TPM2_PCR_Read`; part 2 for the constants).

use super::if_found;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};

/// The register that applications may use.
const PCR: u8 = 23;

const SHA256: u16 = 0x000b;
const WITHOUT_SESSION: u16 = 0x8001;
const WITH_SESSION: u16 = 0x8002;
const GET_RANDOM: u32 = 0x017b;
const PCR_EXTEND: u32 = 0x0182;
const PCR_READ: u32 = 0x017e;
/// A tag, a size and a code.
const HEADER: usize = 10;
/// The session of a command whose password is empty: handle, nonce, attributes, password.
const EMPTY_PASSWORD: [u8; 9] = [0x40, 0, 0, 9, 0, 0, 0, 0, 0];

/// The TPM. Its register is extended once, so that it has a value that can be lost.
#[derive(Debug, Default)]
pub(super) struct Tpm {
    extended: bool,
}

/// What the TPM gave.
#[derive(Debug)]
pub(super) struct Readings {
    pub(super) random: [u8; 8],
    /// The register's value.
    pub(super) pcr: [u8; 32],
}

impl Tpm {
    /// A new random number, and the register that was extended the first time.
    pub(super) fn read(&mut self) -> io::Result<Option<Readings>> {
        let opened = OpenOptions::new().read(true).write(true).open("/dev/tpm0");
        let Some(mut file) = if_found(opened)? else {
            return Ok(None);
        };
        if !self.extended {
            execute(&mut file, &pcr_extend())?;
            self.extended = true;
        }
        let random = execute(&mut file, &command(WITHOUT_SESSION, GET_RANDOM, &[0, 8]))?;
        let pcr = execute(&mut file, &pcr_read())?;
        Ok(Some(Readings {
            // Both follow a size, at the end of the answer.
            random: last(&random)?,
            pcr: last(&pcr)?,
        }))
    }
}

fn pcr_extend() -> Vec<u8> {
    let mut body = vec![0, 0, 0, PCR, 0, 0, 0, 9];
    body.extend(EMPTY_PASSWORD);
    body.extend([0, 0, 0, 1]);
    body.extend(SHA256.to_be_bytes());
    body.extend([0xa5; 32]);
    command(WITH_SESSION, PCR_EXTEND, &body)
}

fn pcr_read() -> Vec<u8> {
    let mut selected = [0; 3];
    selected[usize::from(PCR / 8)] = 1 << (PCR % 8);
    let mut body = vec![0, 0, 0, 1];
    body.extend(SHA256.to_be_bytes());
    body.push(3);
    body.extend(selected);
    command(WITHOUT_SESSION, PCR_READ, &body)
}

fn command(tag: u16, code: u32, body: &[u8]) -> Vec<u8> {
    // At most 60 bytes.
    let size = u32::try_from(HEADER + body.len()).unwrap_or(u32::MAX);
    let mut command = tag.to_be_bytes().to_vec();
    command.extend(size.to_be_bytes());
    command.extend(code.to_be_bytes());
    command.extend(body);
    command
}

/// Executes a command and returns the answer.
fn execute(file: &mut File, command: &[u8]) -> io::Result<Vec<u8>> {
    // The device takes a command in one write, and gives its answer in one read.
    let written = file.write(command)?;
    let mut answer = vec![0; 4096];
    let read = file.read(&mut answer)?;
    answer.truncate(read);
    match answer.get(HEADER - 4..HEADER) {
        Some([0, 0, 0, 0]) if written == command.len() => Ok(answer),
        code => Err(io::Error::other(format!(
            "the answer to {command:02x?} has the code {code:02x?}"
        ))),
    }
}

fn last<const N: usize>(answer: &[u8]) -> io::Result<[u8; N]> {
    let bytes = answer.get(HEADER..).and_then(<[u8]>::last_chunk);
    let short = || io::Error::other(format!("the answer {answer:02x?} is too short"));
    bytes.copied().ok_or_else(short)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_have_their_length() {
        for command in [pcr_read(), pcr_extend()] {
            let length = u32::try_from(command.len()).unwrap();
            assert_eq!(command[2..6], length.to_be_bytes());
        }
        assert_eq!(
            command(WITHOUT_SESSION, GET_RANDOM, &[0, 8]),
            [0x80, 1, 0, 0, 0, 12, 0, 0, 1, 0x7b, 0, 8]
        );
    }
}
