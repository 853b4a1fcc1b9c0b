//! What the page is shown on: the window's size, its colors, and pictures of it.

use super::Browser;
use crate::LabError;
use data_encoding::BASE64;
use serde_json::json;
use std::fs;
use std::path::Path;

/// The size of the window.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Viewport {
    /// In CSS pixels.
    pub width: u32,
    /// In CSS pixels.
    pub height: u32,
    /// The pixels of a screenshot for each of these.
    pub scale: u32,
    /// Whether the page is laid out as on a phone: by its `viewport` element, with scroll bars
    /// that need no room.
    pub mobile: bool,
}

impl Viewport {
    /// A window on a desktop.
    pub const DESKTOP: Self = Self {
        width: 1280,
        height: 800,
        scale: 1,
        mobile: false,
    };
    /// A phone, held upright.
    pub const PHONE: Self = Self {
        width: 390,
        height: 844,
        scale: 2,
        mobile: true,
    };
}

/// What the user prefers: the media feature `prefers-color-scheme`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ColorScheme {
    /// Dark text on a light page.
    Light,
    /// Light text on a dark page.
    Dark,
}

impl Browser {
    /// Sets the size of the window, also of a page that is shown already.
    ///
    /// # Errors
    /// When the browser refuses it.
    pub fn set_viewport(&self, viewport: Viewport) -> Result<(), LabError> {
        let metrics = json!({
            "width": viewport.width,
            "height": viewport.height,
            "deviceScaleFactor": viewport.scale,
            "mobile": viewport.mobile,
        });
        self.lock()
            .call("Emulation.setDeviceMetricsOverride", metrics)
            .map(drop)
    }

    /// Sets which colors the user prefers, also of a page that is shown already.
    ///
    /// # Errors
    /// When the browser refuses it.
    pub fn set_color_scheme(&self, scheme: ColorScheme) -> Result<(), LabError> {
        let value = match scheme {
            ColorScheme::Light => "light",
            ColorScheme::Dark => "dark",
        };
        let features = json!([{ "name": "prefers-color-scheme", "value": value }]);
        self.lock()
            .call(
                "Emulation.setEmulatedMedia",
                json!({ "features": features }),
            )
            .map(drop)
    }

    /// Sets whether pages that are opened from now on may run scripts. Expressions of a test are
    /// evaluated in any case.
    ///
    /// # Errors
    /// When the browser refuses it.
    pub fn set_scripts(&self, run: bool) -> Result<(), LabError> {
        self.lock()
            .call(
                "Emulation.setScriptExecutionDisabled",
                json!({ "value": !run }),
            )
            .map(drop)
    }

    /// Writes a picture of the window into a file, as PNG.
    ///
    /// # Errors
    /// When the browser cannot draw it, or the file cannot be written.
    pub fn screenshot(&self, file: &Path) -> Result<(), LabError> {
        self.draw(file, false)
    }

    /// Writes a picture of the whole page into a file, as PNG, however long it is.
    ///
    /// # Errors
    /// See [`screenshot`](Self::screenshot).
    pub fn screenshot_of_page(&self, file: &Path) -> Result<(), LabError> {
        self.draw(file, true)
    }

    fn draw(&self, file: &Path, whole: bool) -> Result<(), LabError> {
        let mut devtools = self.lock();
        let arguments = json!({ "format": "png", "captureBeyondViewport": whole });
        let picture = devtools.call("Page.captureScreenshot", arguments)?;
        let data = picture["data"].as_str().unwrap_or_default();
        let data = BASE64.decode(data.as_bytes());
        let data = data.map_err(|error| devtools.error("drawing the page", error.to_string()))?;
        fs::write(file, data).map_err(LabError::file("writing", file))
    }
}
