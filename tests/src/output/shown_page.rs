//! A browser with one of the pages that show migrations, and what it shows.

use std::path::{Path, PathBuf};
use std::time::Duration;

use hikkoshi_account::{Map, Side};
use hikkoshi_lab::Lab;
use hikkoshi_lab::browser::{Browser, ColorScheme, Viewport};
use hikkoshi_status::Recording;
use serde_json::{Value, json};

/// Only ends a test that hangs.
const PATIENCE: Duration = Duration::from_secs(120);

/// The smallest phone that the pages are made for.
const SMALL_PHONE: Viewport = Viewport {
    width: 360,
    height: 740,
    scale: 2,
    mobile: true,
};

/// A window that shows most of a page.
const LARGE: Viewport = Viewport {
    width: 1280,
    height: 1500,
    scale: 1,
    mobile: false,
};

/// A browser with the live page or a report.
#[derive(Debug)]
pub struct ShownPage {
    /// The browser.
    pub browser: Browser,
    // Last: the browser's files are in it.
    _lab: Lab,
}

impl ShownPage {
    /// Starts a browser, which shows nothing yet.
    pub fn start() -> Self {
        let lab = Lab::new().unwrap();
        let browser = Browser::start(&lab).unwrap();
        browser.set_viewport(LARGE).unwrap();
        Self { browser, _lab: lab }
    }

    /// Opens a page.
    pub fn open(&self, url: &str) {
        self.browser.open(url).unwrap();
    }

    /// The value of an expression in the page.
    pub fn evaluate(&self, expression: &str) -> Value {
        self.browser.evaluate(expression).unwrap()
    }

    /// Waits until an expression is true.
    pub fn wait(&self, what: &str, expression: &str) {
        self.browser.wait_until(what, expression, PATIENCE).unwrap();
    }

    /// Opens the report of the chosen migration, and waits until its page is drawn. The dashboard's
    /// own page has the same headings, and is shown until the report has been loaded.
    pub fn open_report(&self) {
        self.browser.click("#reports a").unwrap();
        self.wait(
            "the report",
            "document.readyState === 'complete' && document.querySelector('body.report article h2')",
        );
    }

    /// Waits until the newest state of the first recording with this name is drawn.
    pub fn wait_for_state(&self, name: &str, at_ms: u64) {
        self.wait(
            &format!("the state at {at_ms} ms"),
            &format!(
                "hikkoshi.live.recordings.get({})?.data.state?.at_ms === {at_ms} && !hikkoshi.live.changed",
                json!(name)
            ),
        );
    }

    /// The rows of the table with this caption: the texts of their cells.
    pub fn table(&self, caption: &str) -> Vec<Vec<String>> {
        let rows = self.evaluate(&format!(
            "(() => {{
                const shown = [...document.querySelectorAll('table')].filter(table =>
                    table.caption?.textContent === {} && table.checkVisibility());
                if (shown.length !== 1) return `${{shown.length}} tables`;
                return [...shown[0].tBodies[0].rows].map(row =>
                    [...row.cells].map(cell => cell.textContent));
            }})()",
            json!(caption)
        ));
        let Value::Array(rows) = rows else {
            panic!("{caption}: {rows}");
        };
        let row = |row: &Value| {
            let cells = row.as_array().unwrap().iter();
            cells
                .map(|cell| cell.as_str().unwrap().to_owned())
                .collect()
        };
        rows.iter().map(row).collect()
    }

    /// The value of a fact at the head of a migration.
    pub fn fact(&self, name: &str) -> String {
        let value = self.evaluate(&format!(
            "[...document.querySelectorAll('.facts dt')].filter(dt =>
                dt.textContent === {} && dt.checkVisibility())[0]?.nextSibling.textContent ?? 'none'",
            json!(name)
        ));
        value.as_str().unwrap().to_owned()
    }

    /// The color that the map has near the lower or upper edge of a cell, as `r,g,b`.
    pub fn color_of_cell(&self, cell: usize, upper: bool) -> String {
        let y = if upper { "1.5" } else { "view.grid.size - 3" };
        let color = self.evaluate(&format!(
            "(() => {{
                const view = hikkoshi.live.sections.views.find(view => view.grid);
                const place = view.grid.place({cell});
                const ratio = devicePixelRatio;
                const at = [(place.x + view.grid.size / 2 - 0.5) * ratio, (place.y + {y}) * ratio];
                const data = view.canvas.getContext('2d').getImageData(...at.map(Math.round), 1, 1).data;
                return [...data].slice(0, 3).join();
            }})()"
        ));
        color.as_str().unwrap().to_owned()
    }

    /// A color of the style sheet, as `r,g,b`.
    pub fn color(&self, name: &str) -> String {
        let color = self.evaluate(&format!(
            "(() => {{
                const context = document.createElement('canvas').getContext('2d');
                context.fillStyle = hikkoshi.theme.colour({});
                context.fillRect(0, 0, 1, 1);
                return [...context.getImageData(0, 0, 1, 1).data].slice(0, 3).join();
            }})()",
            json!(name)
        ));
        color.as_str().unwrap().to_owned()
    }

    /// Nothing was reported to the console, forbidden by the policy, or asked of another host.
    pub fn assert_clean(&self) {
        assert_eq!(self.browser.console_errors().unwrap(), [""; 0]);
        assert_eq!(self.browser.csp_violations().unwrap(), []);
        assert_eq!(self.browser.foreign_requests().unwrap(), []);
    }

    /// Takes pictures on a desktop and a phone, light and dark. On each, the page is not wider than
    /// the window, and its colors differ.
    pub fn assert_fits_everywhere(&self, name: &str) {
        let mut backgrounds = Vec::new();
        for (size, viewport) in [("desktop", LARGE), ("phone", SMALL_PHONE)] {
            self.browser.set_viewport(viewport).unwrap();
            for (scheme, theme) in [(ColorScheme::Light, "light"), (ColorScheme::Dark, "dark")] {
                self.browser.set_color_scheme(scheme).unwrap();
                self.wait(
                    "the page to be laid out",
                    "new Promise(done => requestAnimationFrame(() =>
                        requestAnimationFrame(() => requestAnimationFrame(() => done(true)))))",
                );
                let width = self.evaluate("document.documentElement.scrollWidth");
                assert!(
                    width.as_u64() <= Some(viewport.width.into()),
                    "{name}, {size}: {width}"
                );
                backgrounds.push(self.evaluate("getComputedStyle(document.body).backgroundColor"));
                let file = screenshots().join(format!("{name}-{size}-{theme}.png"));
                self.browser.screenshot_of_page(&file).unwrap();
            }
        }
        assert_eq!(backgrounds[0], backgrounds[2]);
        assert_ne!(backgrounds[0], backgrounds[1]);
        self.browser.set_viewport(LARGE).unwrap();
        self.browser.set_color_scheme(ColorScheme::Light).unwrap();
    }

    /// Takes a picture of the window.
    pub fn screenshot(&self, name: &str) {
        let file = screenshots().join(format!("{name}.png"));
        self.browser.screenshot(&file).unwrap();
    }
}

/// The folder of the screenshots.
fn screenshots() -> PathBuf {
    let folder = std::env::var_os("HIKKOSHI_SCREENSHOTS").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../build/tests/screenshots"),
        PathBuf::from,
    );
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// A whole number as the pages write it.
pub fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The legend of the map for the last state of a recording: pages of the guest by state.
pub fn legend_of(recording: &Recording) -> Vec<[String; 2]> {
    let state = recording.state.as_ref().unwrap();
    let map = &state.map;
    let memory = &recording.migration.memory;
    let at = |list: &[u64], cell: usize| list.get(cell).copied().unwrap_or(0);
    let lists = [&map.missing, &map.by_request, &map.background];
    let postcopy = lists.iter().any(|list| list.iter().any(|pages| *pages > 0));
    let mut totals = [0_u64; 7];
    for cell in 0..usize::try_from(memory.cells()).unwrap() {
        let first = cell as u64 * memory.cell_pages;
        let pages = memory.cell_pages.min(memory.pages - first);
        let missing = at(&map.missing, cell);
        let (requested, background) = (at(&map.by_request, cell), at(&map.background, cell));
        // An engine reads the counts one after the other, while pages arrive.
        let arrived_or_missing = missing + requested + background;
        let rest = pages.saturating_sub(arrived_or_missing);
        let sent = at(&map.sent, cell).min(rest);
        let dirty = if postcopy {
            0
        } else {
            at(&map.dirty, cell).min(sent)
        };
        let waiting = at(&map.waiting, cell).min(missing);
        let states = [
            requested,
            background,
            sent - dirty,
            dirty,
            waiting,
            missing - waiting,
            rest - sent,
        ];
        for (total, count) in totals.iter_mut().zip(states) {
            *total += count;
        }
    }
    // Of so much it is known how much the guest writes to it.
    let rated = map.rated_pages;
    let is_complete = Map::is_rated(rated, memory.pages);
    let names = match recording.migration.side {
        Side::Source => [
            "Sent by request",
            "Sent in the background",
            match is_complete || postcopy {
                true => "Sent in pre-copy, clean since",
                false => "Sent in pre-copy",
            },
            match rated > 0 && !is_complete {
                true => "Sent, and dirty again, as far as known",
                false => "Sent, and dirty again",
            },
            "Requested, no answer yet",
            "Missing: not sent yet",
            "Not sent",
        ],
        Side::Destination => [
            "Received by request",
            "Received in the background",
            "Received in pre-copy",
            "Dirty again at the source",
            "Requested, no answer yet",
            "Missing: not received yet",
            "Not received: not yet, or unused",
        ],
    };
    let source = recording.migration.side == Side::Source;
    let texts = totals.iter().enumerate().map(|(index, pages)| match index {
        3 if !source || rated == 0 => "–".to_owned(),
        // Only the destination has it.
        4 if source => "–".to_owned(),
        _ => count(*pages),
    });
    let names = names.map(str::to_owned).into_iter();
    names.zip(texts).map(|(name, text)| [name, text]).collect()
}
