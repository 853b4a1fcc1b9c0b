//! The files of the page.

/// The `Content-Security-Policy` of the live page: its own scripts, styles, pictures and events,
/// and nothing else.
pub const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; \
     style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; \
     frame-ancestors 'none'";

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

/// A file of the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asset {
    /// Its `Content-Type`.
    pub content_type: &'static str,
    /// Its content.
    pub bytes: &'static [u8],
}

/// A file of `web/`: its path there, and its text.
macro_rules! file {
    ($path:literal) => {
        ($path, include_str!(concat!("../web/", $path)))
    };
}

const PAGE: &str = include_str!("../web/index.html");
/// The icon, as SVG.
pub(crate) const ICON: &str = include_str!("../web/icon.svg");

/// Styles, in order.
pub(crate) const STYLES: &[(&str, &str)] =
    &[file!("vendor/uplot/uPlot.min.css"), file!("style.css")];

/// Scripts that the live page and reports have in common, in order.
pub(crate) const SCRIPTS: &[(&str, &str)] = &[
    file!("vendor/uplot/uPlot.iife.min.js"),
    file!("js/format.js"),
    file!("js/dom.js"),
    file!("js/theme.js"),
    file!("js/recording.js"),
    file!("js/migration.js"),
    file!("js/memory.js"),
    file!("js/chart.js"),
    file!("js/views/memory-map.js"),
    file!("js/views/summary.js"),
    file!("js/views/rates.js"),
    file!("js/views/latency.js"),
    file!("js/views/handover.js"),
    file!("js/views/downtime.js"),
    file!("js/views/disks.js"),
    file!("js/views/rounds.js"),
    file!("js/views/repeats.js"),
    file!("js/views/outages.js"),
    file!("js/views/course.js"),
    file!("js/sections.js"),
];

/// Scripts of the live page only, after the others.
const LIVE_SCRIPTS: &[(&str, &str)] = &[
    file!("js/evacuation.js"),
    file!("js/hosts.js"),
    file!("js/list.js"),
    file!("js/live.js"),
];

/// The last script of a report.
pub(crate) const REPORT_SCRIPT: &str = include_str!("../web/js/report.js");

/// The licence of the charting library, which goes with every copy of it.
pub(crate) const UPLOT_LICENSE: &str = include_str!("../web/vendor/uplot/LICENSE");

/// The file for the path of a request, such as `/` or `/style.css`. `None`: there is none.
pub fn asset(path: &str) -> Option<Asset> {
    let found = |content_type, text: &'static str| {
        Some(Asset {
            content_type,
            bytes: text.as_bytes(),
        })
    };
    let path = path.strip_prefix('/')?;
    match path {
        "" | "index.html" => return found(HTML, PAGE),
        "icon.svg" => return found(SVG, ICON),
        _ => {}
    }
    let text_of = |files: &[(&str, &'static str)]| {
        files
            .iter()
            .find(|(name, _)| *name == path)
            .map(|(_, text)| *text)
    };
    if let Some(text) = text_of(STYLES) {
        return found(CSS, text);
    }
    found(SCRIPT, text_of(SCRIPTS).or_else(|| text_of(LIVE_SCRIPTS))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values of an attribute in elements of the page, in order.
    fn values<'a>(element: &str, attribute: &str) -> Vec<&'a str> {
        let marker = format!(" {attribute}=\"");
        PAGE.lines()
            .filter(|line| line.starts_with(element))
            .filter_map(|line| line.split_once(&marker)?.1.split('"').next())
            .collect()
    }

    fn names(files: &[(&'static str, &str)]) -> Vec<&'static str> {
        files.iter().map(|(name, _)| *name).collect()
    }

    #[test]
    fn the_page_has_all_scripts_and_styles_in_their_order() {
        let scripts = values("<script", "src");
        assert_eq!(scripts, [names(SCRIPTS), names(LIVE_SCRIPTS)].concat());
        assert_eq!(values("<link rel=\"stylesheet\"", "href"), names(STYLES));
    }

    /// The first colour of each line of the style sheet that begins with `begin`.
    fn colours(style: &str, begin: &str) -> Vec<String> {
        let lines = style
            .lines()
            .filter_map(|line| line.trim().strip_prefix(begin));
        let colour = |line: &str| Some(format!("#{}", line.split_once('#')?.1.get(..6)?));
        lines.filter_map(colour).collect()
    }

    /// Neighbours would not be told apart, and a state of the memory map would be seen in a step.
    #[test]
    fn each_step_of_the_switchover_has_a_colour_that_nothing_else_has() {
        let style = include_str!("../web/style.css");
        let steps = colours(style, ".step-");
        let script = include_str!("../web/js/views/downtime.js");
        assert!(script.contains(&format!("const COLOURS = {};", steps.len())));
        let states = [
            "requested",
            "background",
            "sent",
            "dirty",
            "waiting",
            "missing",
            "unsent",
        ];
        let states = states.map(|state| colours(style, &format!("--{state}:")));
        assert!(
            states.iter().all(|colours| !colours.is_empty()),
            "{states:?}"
        );
        for (number, colour) in steps.iter().enumerate() {
            assert!(!steps[..number].contains(colour), "step {number}: {colour}");
            assert!(!states.concat().contains(colour), "step {number}: {colour}");
        }
    }

    #[test]
    fn what_the_page_refers_to_is_served() {
        let references = [values("<script", "src"), values("<link", "href")].concat();
        assert!(references.len() > 20, "{references:?}");
        for reference in references {
            let found = asset(&format!("/{reference}")).expect("it is served");
            assert!(!found.bytes.is_empty(), "{reference}");
        }
        assert_eq!(asset("/"), asset("/index.html"));
        assert_eq!(asset("/").map(|page| page.content_type), Some(HTML));
    }

    #[test]
    fn nothing_else_is_served() {
        for path in [
            "",
            "index.html",
            "/../Cargo.toml",
            "/js/",
            "/vendor/uplot/LICENSE",
        ] {
            assert_eq!(asset(path), None, "{path}");
        }
    }

    /// Scripts in the page itself would need an exception in the policy.
    #[test]
    fn the_page_has_no_inline_scripts_or_styles() {
        assert!(!PAGE.contains("<style") && !PAGE.contains(" style="));
        let handlers = PAGE.split(" on").skip(1);
        let names = handlers.filter_map(|rest| rest.split_whitespace().next());
        assert!(names.into_iter().all(|name| !name.contains('=')));
        assert_eq!(
            PAGE.matches("<script").count(),
            PAGE.matches("<script defer src=").count()
        );
    }

    /// What a recording has is text: no script makes HTML or code of a string.
    #[test]
    fn no_own_script_makes_markup_or_code_of_strings() {
        let own = SCRIPTS
            .iter()
            .chain(LIVE_SCRIPTS)
            .filter(|(name, _)| name.starts_with("js/"));
        for (name, text) in own.chain([&("js/report.js", REPORT_SCRIPT)]) {
            for forbidden in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "new Function",
                "DOMParser",
                "http:",
                "https:",
            ] {
                let allowed = text.matches("http://www.w3.org/2000/svg").count();
                let found = text.matches(forbidden).count();
                let found = found - if forbidden == "http:" { allowed } else { 0 };
                assert_eq!(found, 0, "{name} has {forbidden}");
            }
        }
    }

    /// The vendored files are those of the release that the README beside them names.
    #[test]
    fn the_charting_library_is_unchanged() {
        let readme = include_str!("../web/vendor/uplot/README.md");
        let files = [
            ("uPlot.iife.min.js", SCRIPTS[0].1),
            ("uPlot.min.css", STYLES[0].1),
            ("LICENSE", UPLOT_LICENSE),
        ];
        for (name, text) in files {
            let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
            let digest = data_encoding::HEXLOWER.encode(digest.as_ref());
            let row = format!("| `{name}` | `{digest}` |");
            assert!(readme.contains(&row), "{row} is not in the README");
        }
        assert!(SCRIPTS[0].1.contains("(v1.6.32)") && readme.contains("1.6.32"));
    }
}
