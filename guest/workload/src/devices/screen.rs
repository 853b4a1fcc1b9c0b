//! Pictures on the screen, by the kernel's frame buffer.

use super::if_found;
use std::fs::OpenOptions;
use std::io::{self, Write};

/// The pixels of a picture: 64 lines of a screen that is 1,024 pixels wide.
const PIXELS: u32 = 64 * 1024;

/// The screen.
#[derive(Debug, Default)]
pub(super) struct Screen {
    pictures: u32,
}

impl Screen {
    /// Draws another picture, of thousands of colours, and returns how many have been drawn.
    pub(super) fn draw(&mut self) -> io::Result<Option<u32>> {
        let opened = OpenOptions::new().write(true).open("/dev/fb0");
        let Some(mut file) = if_found(opened)? else {
            return Ok(None);
        };
        self.pictures += 1;
        let pixels = (0..PIXELS).map(|pixel| pixel.wrapping_mul(0x9e37_79b1) ^ self.pictures);
        let bytes: Vec<u8> = pixels.flat_map(u32::to_le_bytes).collect();
        file.write_all(&bytes)?;
        Ok(Some(self.pictures))
    }
}
