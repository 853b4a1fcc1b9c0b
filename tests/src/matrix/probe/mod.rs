//! Probes: a guest uses a device after it has booted and after each move.

mod balloon;
mod port;
mod processors;
mod random;
mod screen;
mod tablet;
mod tpm;

pub(super) use screen::screen;

use crate::LONG;
use hikkoshi_lab::{Devices, Vm};
use std::fmt;

/// Uses a device, and checks that what was left in it at the use before has survived the move.
pub(super) trait Probe: fmt::Debug {
    /// Uses the device on this machine, where the guest runs.
    ///
    /// # Panics
    /// When the device does not work, or has lost its state.
    fn check(&mut self, vm: &Vm);
}

/// The device that a row is about.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Probed {
    /// virtio-balloon.
    Balloon,
    /// The virtio-serial port.
    Port,
    /// That many processors, some of them plugged.
    Processors(u32),
    /// virtio-rng.
    Random,
    /// A graphics card, whose driver the guest has.
    Screen,
    /// The USB tablet.
    Tablet,
    /// The TPM.
    Tpm,
}

impl Probed {
    /// A probe of a guest that has just booted.
    pub(super) fn probe(self) -> Box<dyn Probe> {
        match self {
            Self::Balloon => Box::new(balloon::Balloon::default()),
            Self::Port => Box::new(port::Port::default()),
            Self::Processors(online) => Box::new(processors::Processors(online)),
            Self::Random => Box::new(random::Random::default()),
            Self::Screen => Box::new(screen::Screen),
            Self::Tablet => Box::new(tablet::Tablet::default()),
            Self::Tpm => Box::new(tpm::Tpm::default()),
        }
    }
}

/// Makes the guest use its devices.
fn devices(vm: &Vm) -> Devices {
    vm.devices(LONG).unwrap()
}

/// Makes the guest use its devices until `is_there`, because what the host sends arrives later.
fn wait_devices(vm: &Vm, what: &str, mut is_there: impl FnMut(&Devices) -> bool) {
    crate::eventually(what, || {
        let devices = devices(vm);
        match is_there(&devices) {
            true => Ok(()),
            false => Err(format!("{devices:?}")),
        }
    });
}
