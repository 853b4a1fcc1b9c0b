//! The screen of a graphics card.

use super::{Probe, wait_devices};
use hikkoshi_lab::Vm;
use serde_json::json;
use std::collections::HashSet;

/// A picture of the guest has thousands of colours, a screen with text only a few.
const COLOURS: usize = 1000;

/// The guest draws a picture, which must be shown.
#[derive(Debug)]
pub(super) struct Screen;

impl Probe for Screen {
    fn check(&mut self, vm: &Vm) {
        // The guest's kernel copies a picture into the device's memory a while later.
        wait_devices(vm, "a picture on the screen", |devices| {
            assert!(devices.drawn.is_some(), "the guest has no frame buffer");
            let screen = screen(vm);
            let colours: HashSet<_> = screen.chunks(3).collect();
            colours.len() > COLOURS
        });
    }
}

/// What the machine shows, as a PPM file: a line of text, then three bytes for each pixel.
///
/// # Panics
/// When QEMU has no screen.
pub(in super::super) fn screen(vm: &Vm) -> Vec<u8> {
    let file = vm.qmp_path().with_extension("ppm");
    let dump = json!({ "filename": file });
    vm.qmp().execute("screendump", dump).unwrap();
    std::fs::read(file).unwrap()
}
