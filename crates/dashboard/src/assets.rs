//! The files of the page.

/// The `Content-Security-Policy` of the live page: its own scripts, styles, pictures and events,
/// and nothing else.
pub const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; \
     style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; \
     frame-ancestors 'none'";

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";

/// A file of the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asset {
    /// Its `Content-Type`.
    pub content_type: &'static str,
    /// Its content.
    pub bytes: &'static [u8],
}

/// The file for the path of a request, such as `/` or `/style.css`. `None`: there is none.
pub fn asset(path: &str) -> Option<Asset> {
    let (content_type, text) = match path {
        "/" | "/index.html" => (HTML, include_str!("../web/index.html")),
        "/style.css" => (CSS, include_str!("../web/style.css")),
        _ => return None,
    };
    Some(Asset {
        content_type,
        bytes: text.as_bytes(),
    })
}
