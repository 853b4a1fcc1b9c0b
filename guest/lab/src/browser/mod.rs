//! A headless browser that shows one page, as a user would see it.
//!
//! **Model.** A [`Browser`] is Debian's Chromium without windows (`make browser`). The DevTools
//! protocol controls it. It opens one page after another, with a real layout, real fonts, and real
//! input events. A test reads the page by expressions in JavaScript, and sees what a developer sees
//! in the console: errors, violations of the content-security policy, and each request.
//!
//! Names of hosts are not resolved, except `localhost`: no request leaves this machine by a name.
//!
//! ```no_run
//! use hikkoshi_lab::{Lab, LabError, browser::{Browser, ColorScheme, Viewport}};
//! use std::path::Path;
//! use std::time::Duration;
//!
//! # fn main() -> Result<(), LabError> {
//! let lab = Lab::new()?;
//! let browser = Browser::start(&lab)?;
//! browser.set_viewport(Viewport::PHONE)?;
//! browser.set_color_scheme(ColorScheme::Dark)?;
//! browser.open("http://127.0.0.1:7777/")?;
//! browser.click("button#start")?;
//! let done = "document.querySelector('#state').textContent === 'done'";
//! browser.wait_until("the move to end", done, Duration::from_secs(30))?;
//! browser.screenshot(Path::new("done.png"))?;
//! assert_eq!(browser.console_errors()?, [""; 0]);
//! assert_eq!(browser.foreign_requests()?, []);
//! # Ok(())
//! # }
//! ```
//!
//! **What is missing.** Requests of workers are not listed. Frames of other origins are not
//! inspected. There is no touch input: a phone is only its size.

mod devtools;
mod events;
mod input;
mod process;
mod view;

#[cfg(test)]
mod tests;

pub use events::{CspViolation, Request};
pub use view::{ColorScheme, Viewport};

use crate::{Lab, LabError};
use devtools::DevTools;
use process::Process;
use serde_json::{Value, json};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a page may take to load, and an element to appear. Only ends a test that hangs.
const LOAD_TIMEOUT: Duration = Duration::from_secs(120);
/// The time between two evaluations of a condition.
const POLL: Duration = Duration::from_millis(20);
/// Characters of the page's text in a message.
const TEXT_IN_MESSAGE: usize = 1000;

/// A browser with one page. On drop, all its processes end, and its profile is removed.
#[derive(Debug)]
pub struct Browser {
    devtools: Mutex<DevTools>,
    // After `devtools`, which owns the pipe: Chromium ends when that is closed.
    process: Process,
}

impl Browser {
    /// Starts a browser with a profile of its own, and an empty page of the size
    /// [`Viewport::DESKTOP`].
    ///
    /// # Errors
    /// When Chromium was not set up (by `make browser`), or does not start.
    pub fn start(lab: &Lab) -> Result<Self, LabError> {
        let (process, to_browser, from_browser) = Process::start(lab)?;
        let browser = Self {
            devtools: Mutex::new(DevTools::new(to_browser, from_browser)?),
            process,
        };
        let attached = browser.attach();
        attached.map_err(|error| browser.process.explain(error))?;
        browser.set_viewport(Viewport::DESKTOP)?;
        browser.set_color_scheme(ColorScheme::Light)?;
        Ok(browser)
    }

    fn attach(&self) -> Result<(), LabError> {
        let mut devtools = self.lock();
        devtools.attach()?;
        for domain in ["Page", "Runtime", "Network", "Log", "Audits", "Inspector"] {
            devtools.call(&format!("{domain}.enable"), json!({}))?;
        }
        devtools.call("Page.setLifecycleEventsEnabled", json!({ "enabled": true }))?;
        // The page has the focus, as if its window were in front.
        let focus = json!({ "enabled": true });
        devtools.call("Emulation.setFocusEmulationEnabled", focus)?;
        Ok(())
    }

    /// Opens a page and waits until it has loaded. What earlier pages have reported is forgotten.
    ///
    /// # Errors
    /// When the page cannot be loaded.
    pub fn open(&self, url: &str) -> Result<(), LabError> {
        // So that the page before it reports nothing more.
        navigate(&mut self.lock(), "about:blank")?;
        let mut devtools = self.up_to_date()?;
        devtools.events.forget(url);
        navigate(&mut devtools, url)
    }

    /// The value of an expression in JavaScript. A promise is awaited. What is not JSON becomes
    /// `null` or `{}`.
    ///
    /// # Errors
    /// When the expression throws, or does not end.
    pub fn evaluate(&self, expression: &str) -> Result<Value, LabError> {
        let mut devtools = self.lock();
        match devtools.evaluate(expression)? {
            Ok(value) => Ok(value),
            Err(thrown) => Err(devtools.error(&format!("evaluating {expression}"), thrown)),
        }
    }

    /// Waits until an expression is true, in the sense of JavaScript, and returns its value. One
    /// that throws is not true yet. `what` describes it in the error, such as "the table to be
    /// filled".
    ///
    /// # Errors
    /// At the time limit: with the expression's last value, the page's text and its errors.
    pub fn wait_until(
        &self,
        what: &str,
        expression: &str,
        timeout: Duration,
    ) -> Result<Value, LabError> {
        let deadline = Instant::now() + timeout;
        loop {
            let result = self.lock().evaluate(expression)?;
            match result {
                Ok(value) if is_true(&value) => return Ok(value),
                _ if Instant::now() < deadline => std::thread::sleep(POLL),
                _ => return Err(self.timed_out(what, expression, timeout, result)),
            }
        }
    }

    fn timed_out(
        &self,
        what: &str,
        expression: &str,
        after: Duration,
        last: Result<Value, String>,
    ) -> LabError {
        let last = match last {
            Ok(value) => format!("is {value}"),
            Err(thrown) => format!("throws {thrown}"),
        };
        let state = "location.href + '\\n' + (document.body?.innerText ?? '')";
        let mut devtools = self.lock();
        let page = match devtools.evaluate(state) {
            Ok(Ok(Value::String(text))) => text.chars().take(TEXT_IN_MESSAGE).collect(),
            _ => "unknown".to_owned(),
        };
        LabError::TimedOut {
            what: what.to_owned(),
            after,
            seen: format!(
                "{expression} {last}\nerrors: {}\npage: {page}",
                devtools.events.messages()
            ),
        }
    }

    /// The text of the first element that a CSS selector matches, as it is shown.
    ///
    /// # Errors
    /// When none matches.
    pub fn text(&self, selector: &str) -> Result<String, LabError> {
        let element = format!("document.querySelector({})", json!(selector));
        match self.evaluate(&format!("{element}?.innerText"))? {
            Value::String(text) => Ok(text),
            _ => {
                let doing = format!("reading the text of {selector}");
                Err(self
                    .lock()
                    .error(&doing, "no such element has text".to_owned()))
            }
        }
    }

    /// What the page has written to the console as errors since it was opened: by
    /// `console.error`, exceptions that no code has caught, and what the browser reports, such as a
    /// request that failed.
    ///
    /// # Errors
    /// When the browser does not answer.
    pub fn console_errors(&self) -> Result<Vec<String>, LabError> {
        Ok(self.up_to_date()?.events.errors().to_vec())
    }

    /// What the content-security policy has forbidden since the page was opened.
    ///
    /// # Errors
    /// When the browser does not answer.
    pub fn csp_violations(&self) -> Result<Vec<CspViolation>, LabError> {
        Ok(self.up_to_date()?.events.violations().to_vec())
    }

    /// All requests since the page was opened, its own included, also those that failed or that
    /// were forbidden.
    ///
    /// # Errors
    /// When the browser does not answer.
    pub fn requests(&self) -> Result<Vec<Request>, LabError> {
        Ok(self.up_to_date()?.events.requests().to_vec())
    }

    /// The requests to other origins than that of the page that was opened.
    ///
    /// # Errors
    /// When the browser does not answer.
    pub fn foreign_requests(&self) -> Result<Vec<Request>, LabError> {
        Ok(self.up_to_date()?.events.foreign_requests())
    }

    /// With the events of what the page has done up to now: they precede the answer to a question.
    fn up_to_date(&self) -> Result<MutexGuard<'_, DevTools>, LabError> {
        let mut devtools = self.lock();
        // The result does not matter.
        let _ = devtools.evaluate("0")?;
        Ok(devtools)
    }

    fn lock(&self) -> MutexGuard<'_, DevTools> {
        self.devtools.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        self.lock().close();
        self.process.end();
    }
}

fn navigate(devtools: &mut DevTools, url: &str) -> Result<(), LabError> {
    let answer = devtools.call("Page.navigate", json!({ "url": url }))?;
    let fail = |devtools: &DevTools, reason: &str| {
        Err(devtools.error(&format!("opening {url}"), reason.to_owned()))
    };
    if let Some(error) = answer["errorText"].as_str() {
        return fail(devtools, error);
    }
    let Some(loader) = answer["loaderId"].as_str() else {
        return fail(devtools, "the browser loads nothing for it");
    };
    let deadline = Instant::now() + LOAD_TIMEOUT;
    while !devtools.events.has_loaded(loader) {
        if !devtools.wait_event(deadline)? {
            return fail(devtools, "the page has not loaded in two minutes");
        }
    }
    Ok(())
}

/// What JavaScript takes for true.
fn is_true(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(value) => *value,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(_) | Value::Object(_) => true,
    }
}
