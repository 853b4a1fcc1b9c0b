//! The virtio-serial port.

use super::{Probe, wait_devices};
use crate::LONG;
use hikkoshi_lab::Vm;
use std::io::{Read, Write};

/// Bytes that the guest has sent back.
#[derive(Debug, Default)]
pub(super) struct Port(u64);

impl Probe for Port {
    fn check(&mut self, vm: &Vm) {
        let mut port = vm.port().expect("the machine has no port");
        port.set_read_timeout(Some(LONG)).unwrap();
        let text = format!("after {} bytes", self.0);
        self.0 += text.len() as u64;
        port.write_all(text.as_bytes()).unwrap();
        wait_devices(vm, "the guest to send the text back", |devices| {
            devices.echoed == Some(self.0)
        });
        let mut echo = vec![0; text.len()];
        port.read_exact(&mut echo).unwrap();
        assert_eq!(String::from_utf8_lossy(&echo), text);
    }
}
