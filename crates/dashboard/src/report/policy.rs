//! The content security policy of a report: the scripts and styles in it, by their digests, its
//! icon, and nothing else.

use ring::digest::{SHA256, digest};

use crate::assets::{REPORT_SCRIPT, SCRIPTS, STYLES};

/// The scripts of a report, in order.
pub(super) fn scripts() -> impl Iterator<Item = &'static str> {
    let common = SCRIPTS.iter().map(|(_, text)| *text);
    common.chain([REPORT_SCRIPT])
}

/// The styles of a report, in order.
pub(super) fn styles() -> impl Iterator<Item = &'static str> {
    STYLES.iter().map(|(_, text)| *text)
}

/// The content security policy of every [`report()`](crate::report()), as the page itself declares
/// it. A server that sends a report must send this one with it, not that of the live page.
pub fn report_policy() -> String {
    format!(
        "default-src 'none'; script-src{}; style-src{}; img-src data:; base-uri 'none'; \
         form-action 'none'",
        digests(scripts()),
        digests(styles())
    )
}

fn digests(texts: impl Iterator<Item = &'static str>) -> String {
    texts
        .map(|text| {
            let digest = digest(&SHA256, text.as_bytes());
            format!(
                " 'sha256-{}'",
                data_encoding::BASE64.encode(digest.as_ref())
            )
        })
        .collect()
}
