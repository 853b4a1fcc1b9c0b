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

/// The content security policy that a server must send with a [`report()`](crate::report()), not
/// that of the live page: the page's own, and that no other page embeds it, which a page cannot
/// declare.
pub fn served_report_policy() -> String {
    format!("{}; frame-ancestors 'none'", report_policy())
}

/// The content security policy of every [`report()`](crate::report()), as the page itself declares
/// it.
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
