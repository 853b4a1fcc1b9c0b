//! The browser with pages of a server in the test.

use super::input::POSITION;
use super::*;
use crate::test_server::TestServer;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Only ends a test that hangs.
const LONG: Duration = Duration::from_secs(30);

const PAGE: &str = r#"<!DOCTYPE html>
<html lang="en">
<meta name="viewport" content="width=device-width">
<title>A page of the test</title>
<link rel="icon" href="data:,">
<style>
    body { font-family: sans-serif; background: white }
    @media (prefers-color-scheme: dark) { body { background: black; color: white } }
    #far { margin-top: 3000px }
    #covered { position: relative }
    #cover { position: absolute; inset: 0; background: red }
</style>
<body>
<button id="start">Start</button>
<input id="name" aria-label="Name">
<p id="said">nothing</p>
<div id="covered"><button id="under">Under</button><div id="cover"></div></div>
<button id="disabled" disabled>Disabled</button>
<button id="hidden" hidden>Hidden</button>
<button id="far">Far away</button>
<script>
    const said = document.querySelector('#said');
    const trusted = event => event.isTrusted ? '' : ' by a script';
    document.querySelector('#start').onclick = event => said.textContent = 'clicked' + trusted(event);
    document.querySelector('#start').onmouseenter = () => document.title = 'hovered';
    document.querySelector('#far').onclick = () => said.textContent = 'far';
    document.querySelector('#cover').onclick = () => said.textContent = 'cover';
    for (const name of ['under', 'disabled', 'hidden'])
        document.getElementById(name).onclick = () => said.textContent = name;
    document.onkeydown = event => {
        if (event.key === 'Escape') said.textContent = event.code + trusted(event);
    };
    setTimeout(() => document.body.dataset.late = 'yes', 100);
</script>
"#;

fn browser_with(lab: &Lab, page: &'static str) -> (Browser, TestServer, String) {
    let server = TestServer::start(move |path| {
        let policy = "text/html; charset=utf-8\r\nContent-Security-Policy: default-src 'self'";
        match path {
            "/" => Some(("text/html; charset=utf-8", page.to_owned())),
            "/policy" => Some((policy, page.to_owned())),
            "/data" => Some(("application/json", "[1]".to_owned())),
            _ => None,
        }
    });
    let url = format!("http://{}", server.address());
    (Browser::start(lab).unwrap(), server, url)
}

fn open(lab: &Lab, page: &'static str) -> (Browser, TestServer) {
    let (browser, server, url) = browser_with(lab, page);
    browser.open(&format!("{url}/")).unwrap();
    (browser, server)
}

/// Width and height, from the picture's first chunk.
fn size_of_png(file: &Path) -> (u32, u32) {
    let data = fs::read(file).unwrap();
    assert_eq!(data[..16], *b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR");
    let number = |at: usize| u32::from_be_bytes(data[at..at + 4].try_into().unwrap());
    (number(16), number(20))
}

#[test]
fn a_page_is_read_by_expressions() {
    let lab = Lab::new().unwrap();
    let (browser, _server) = open(&lab, PAGE);
    let evaluate = |expression: &str| browser.evaluate(expression).unwrap();
    assert_eq!(evaluate("document.title"), "A page of the test");
    assert_eq!(
        evaluate("({ a: [1, null, 'x'], b: undefined })"),
        json!({ "a": [1, null, "x"] })
    );
    assert_eq!(
        evaluate("fetch('/data').then(answer => answer.json())"),
        json!([1])
    );
    assert_eq!(browser.text("#said").unwrap(), "nothing");
    let late = browser.wait_until("the timer", "document.body.dataset.late", LONG);
    assert_eq!(late.unwrap(), "yes");
    let thrown = browser.evaluate("missing.value").unwrap_err().to_string();
    assert!(thrown.contains("missing is not defined"), "{thrown}");
    let none = browser.text("#none").unwrap_err().to_string();
    assert!(none.contains("#none"), "{none}");
    assert_eq!(browser.console_errors().unwrap(), [""; 0]);
}

#[test]
fn a_condition_that_does_not_hold_is_explained() {
    let lab = Lab::new().unwrap();
    let (browser, _server) = open(&lab, PAGE);
    browser.evaluate("console.error('the reason', 7)").unwrap();
    let wait = |condition| browser.wait_until("the end", condition, Duration::ZERO);
    let error = wait("document.querySelector('#said').textContent === 'done'");
    let error = error.unwrap_err().to_string();
    for part in ["the end", " is false", "the reason 7", "nothing"] {
        assert!(error.contains(part), "no {part}: {error}");
    }
    let error = wait("document.querySelector('#none').value").unwrap_err();
    assert!(error.to_string().contains("throws TypeError"), "{error}");
}

#[test]
fn mouse_and_keyboard_are_a_users() {
    let lab = Lab::new().unwrap();
    let (browser, _server) = open(&lab, PAGE);
    let said = || browser.text("#said").unwrap();
    browser.hover("#start").unwrap();
    assert_eq!(browser.evaluate("document.title").unwrap(), "hovered");
    browser.click("#start").unwrap();
    assert_eq!(said(), "clicked");
    browser.click("#far").unwrap();
    assert_eq!(said(), "far", "the page was scrolled to it");

    // The keyboard only.
    browser
        .evaluate("document.activeElement.blur(); scrollTo(0, 0)")
        .unwrap();
    assert_eq!(browser.focused().unwrap(), "");
    browser.press("Escape").unwrap();
    assert_eq!(said(), "Escape");
    browser
        .evaluate("document.querySelector('#name').focus()")
        .unwrap();
    for key in ["引", "a", "B", "1", "Space", "ArrowLeft", "Backspace"] {
        browser.press(key).unwrap();
    }
    assert_eq!(
        browser.evaluate("document.activeElement.value").unwrap(),
        "引aB "
    );
    browser.press("Control+a").unwrap();
    browser.press("x").unwrap();
    assert_eq!(
        browser.evaluate("document.activeElement.value").unwrap(),
        "x"
    );
    browser.press("Shift+Tab").unwrap();
    assert_eq!(browser.focused().unwrap(), "button#start Start");
    browser.press("Enter").unwrap();
    assert_eq!(said(), "clicked");
    browser.press("Tab").unwrap();
    assert_eq!(browser.focused().unwrap(), "input#name Name");
    let error = browser.press("Any").unwrap_err().to_string();
    assert!(error.contains("no such key"), "{error}");
}

#[test]
fn an_element_is_clicked_when_a_user_could() {
    let lab = Lab::new().unwrap();
    let (browser, _server) = open(&lab, PAGE);
    for (id, reason, change) in [
        (
            "under",
            "it is covered by <div id=\"cover\"",
            "#cover').remove()",
        ),
        ("disabled", "it is disabled", "#disabled').disabled = false"),
        ("hidden", "it is not shown", "#hidden').hidden = false"),
    ] {
        let position = format!("({POSITION})(document.getElementById('{id}'))");
        let position = browser.evaluate(&position).unwrap();
        assert!(position.as_str().unwrap().starts_with(reason), "{position}");
        let later = format!("setTimeout(() => document.querySelector('{change}, 200)");
        browser.evaluate(&later).unwrap();
        browser.click(&format!("#{id}")).unwrap();
        assert_eq!(browser.text("#said").unwrap(), id);
    }
}

#[test]
fn the_page_is_shown_as_on_a_phone_and_in_the_dark() {
    let lab = Lab::new().unwrap();
    let (browser, _server) = open(&lab, PAGE);
    let background = "getComputedStyle(document.body).backgroundColor";
    let size = "[innerWidth, innerHeight, devicePixelRatio]";
    let file = |name: &str| lab.folder().join(name);
    assert_eq!(browser.evaluate(size).unwrap(), json!([1280, 800, 1]));
    assert_eq!(browser.evaluate(background).unwrap(), "rgb(255, 255, 255)");
    browser.screenshot(&file("light.png")).unwrap();
    assert_eq!(size_of_png(&file("light.png")), (1280, 800));

    browser.set_color_scheme(ColorScheme::Dark).unwrap();
    assert_eq!(browser.evaluate(background).unwrap(), "rgb(0, 0, 0)");
    browser.screenshot(&file("dark.png")).unwrap();
    assert_ne!(
        fs::read(file("light.png")).unwrap(),
        fs::read(file("dark.png")).unwrap()
    );

    browser.set_viewport(Viewport::PHONE).unwrap();
    assert_eq!(browser.evaluate(size).unwrap(), json!([390, 844, 2]));
    browser.screenshot(&file("phone.png")).unwrap();
    assert_eq!(size_of_png(&file("phone.png")), (780, 1688));
    browser.screenshot_of_page(&file("whole.png")).unwrap();
    let (width, height) = size_of_png(&file("whole.png"));
    assert_eq!(width, 780);
    assert!(
        height > 6000,
        "the button at 3,000 pixels is in it: {height}"
    );
    // Text is drawn with the fonts that were set up, not as boxes without a glyph.
    let families = "['serif', 'sans-serif', 'monospace'].map(family => {
        const context = document.createElement('canvas').getContext('2d');
        context.font = '100px ' + family;
        return context.measureText('mil').width;
    })";
    let widths = browser.evaluate(families).unwrap();
    assert!(widths[0] != widths[1] && widths[1] != widths[2], "{widths}");
}

#[test]
fn errors_and_foreign_requests_are_noticed() {
    let lab = Lab::new().unwrap();
    let page = r#"<!DOCTYPE html><title>bad</title><link rel="icon" href="data:,">
        <script>
            console.error('said', { a: 1 });
            console.warn('only a warning');
            fetch('/nowhere').then(() => fetch('http://elsewhere.localhost/'))
                .catch(() => document.title = 'tried');
            setTimeout(() => { throw new Error('thrown') });
        </script>"#;
    let (browser, _server, url) = browser_with(&lab, page);
    browser.open(&format!("{url}/")).unwrap();
    browser
        .wait_until("requests", "document.title === 'tried'", LONG)
        .unwrap();
    let errors = browser.console_errors().unwrap();
    for part in ["said Object", "Error: thrown", "404", "elsewhere.localhost"] {
        assert!(
            errors.iter().any(|error| error.contains(part)),
            "no {part}: {errors:?}"
        );
    }
    assert!(!errors.join(" ").contains("warning"), "{errors:?}");
    let requests = browser.requests().unwrap();
    let statuses: Vec<_> = requests
        .iter()
        .filter(|request| request.url.starts_with(&url))
        .map(|request| {
            (
                &request.url[url.len()..],
                request.kind.as_str(),
                request.status,
            )
        })
        .collect();
    assert_eq!(
        statuses,
        [
            ("/", "Document", Some(200)),
            ("/nowhere", "Fetch", Some(404))
        ]
    );
    let foreign = browser.foreign_requests().unwrap();
    assert_eq!(foreign.len(), 1, "{foreign:?}");
    assert_eq!(foreign[0].url, "http://elsewhere.localhost/");
    assert_eq!(
        foreign[0].failure.as_deref(),
        Some("net::ERR_NAME_NOT_RESOLVED")
    );
    assert_eq!(browser.csp_violations().unwrap(), []);

    // The next page starts without these.
    browser.open(&format!("{url}/data")).unwrap();
    assert_eq!(browser.console_errors().unwrap(), [""; 0]);
    assert_eq!(browser.foreign_requests().unwrap(), []);
    assert_eq!(browser.requests().unwrap().len(), 1);
}

#[test]
fn violations_of_the_policy_are_noticed() {
    let lab = Lab::new().unwrap();
    let page = r#"<!DOCTYPE html><title>forbidden</title>
        <img src="http://elsewhere.localhost/image.png"><script>document.title = 'ran'</script>"#;
    let (browser, _server, url) = browser_with(&lab, page);
    browser.open(&format!("{url}/policy")).unwrap();
    assert_eq!(browser.evaluate("document.title").unwrap(), "forbidden");
    let violation = |directive: &str, blocked: &str| CspViolation {
        directive: directive.to_owned(),
        blocked: blocked.to_owned(),
    };
    let mut violations = browser.csp_violations().unwrap();
    violations.sort_by(|a, b| a.directive.cmp(&b.directive));
    assert_eq!(
        violations,
        [
            violation("img-src", "http://elsewhere.localhost/image.png"),
            violation("script-src-elem", ""),
        ]
    );
    let foreign = browser.foreign_requests().unwrap();
    assert_eq!(foreign[0].failure.as_deref(), Some("csp"), "{foreign:?}");
    assert!(!browser.console_errors().unwrap().is_empty());
}

#[test]
fn a_page_that_cannot_be_loaded_is_an_error() {
    let lab = Lab::new().unwrap();
    let (browser, server, url) = browser_with(&lab, PAGE);
    drop(server);
    let error = browser.open(&url).unwrap_err().to_string();
    assert!(error.contains("ERR_CONNECTION_REFUSED"), "{error}");
    let error = browser.open("chrome://crash").unwrap_err().to_string();
    assert!(error.contains("crash"), "{error}");
}

/// The PID namespace of the browser whose profile is in this folder. While it is open, no other
/// namespace has its number.
fn namespace_of(folder: &Path) -> File {
    let inside = format!("{}/", folder.display());
    let here = fs::read_link("/proc/self/ns/pid").unwrap();
    let of_browser = |process: &PathBuf| {
        fs::read_to_string(process.join("cmdline")).is_ok_and(|line| line.contains(&inside))
            && fs::read_link(process.join("ns/pid")).is_ok_and(|namespace| namespace != here)
    };
    let process = processes().find(of_browser).expect("no browser runs");
    File::open(process.join("ns/pid")).unwrap()
}

/// How many processes are in a PID namespace.
fn processes_in(namespace: &File) -> usize {
    let number = namespace.metadata().unwrap().ino();
    let namespaces = processes().filter_map(|process| fs::metadata(process.join("ns/pid")).ok());
    namespaces.filter(|other| other.ino() == number).count()
}

fn processes() -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    entries.map(|entry| entry.path())
}

#[test]
fn all_processes_end_with_the_browser_also_in_a_panic() {
    let lab = Lab::new().unwrap();
    let clone = lab.clone();
    let test = std::thread::spawn(move || {
        let (_browser, _server) = open(&clone, PAGE);
        let namespace = namespace_of(clone.folder());
        // The browser, a page, and what they need.
        assert!(processes_in(&namespace) >= 3);
        std::panic::resume_unwind(Box::new(namespace));
    });
    let panic = test.join().unwrap_err();
    let namespace: &File = panic.downcast_ref().expect("another panic");
    assert_eq!(processes_in(namespace), 0);
    let left: Vec<_> = fs::read_dir(lab.folder()).unwrap().flatten().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_browser_that_hangs_is_killed() {
    let lab = Lab::new().unwrap();
    let (browser, _server) = open(&lab, PAGE);
    let namespace = namespace_of(lab.folder());
    browser.process.stop();
    drop(browser);
    assert_eq!(processes_in(&namespace), 0);
}

#[test]
fn truth_is_that_of_javascript() {
    for value in [json!(null), json!(false), json!(0), json!(0.0), json!("")] {
        assert!(!is_true(&value), "{value}");
    }
    for value in [json!(true), json!(-1), json!("0"), json!([]), json!({})] {
        assert!(is_true(&value), "{value}");
    }
}
