//! Requests that pages of other sites have made (W3C, Fetch Metadata Request Headers).
//!
//! Such a page cannot read the responses. But it can have them made, in any number.

use hyper::HeaderMap;

/// Whether a browser says that a page of another site has made the request. A link that a user
/// follows to the page itself is not meant.
pub(super) fn is_of_another_site(path: &str, headers: &HeaderMap) -> bool {
    let value = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let is_own = match value("sec-fetch-site") {
        // Not a browser, or an old one.
        None => true,
        Some(site) => ["same-origin", "none"].contains(&site),
    };
    let is_link = path == "/"
        && value("sec-fetch-mode") == Some("navigate")
        && value("sec-fetch-dest") == Some("document");
    !is_own && !is_link
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refuses(path: &str, headers: &[(&'static str, &'static str)]) -> bool {
        let headers = headers
            .iter()
            .map(|&(name, value)| (name.parse().unwrap(), value.parse().unwrap()))
            .collect();
        is_of_another_site(path, &headers)
    }

    #[test]
    fn only_links_to_the_page_may_come_from_other_sites() {
        const SITE: &str = "sec-fetch-site";
        let link = [
            ("sec-fetch-mode", "navigate"),
            ("sec-fetch-dest", "document"),
        ];
        let from = |site| [[(SITE, site)].as_slice(), &link].concat();
        assert!(!refuses("/events", &[]));
        for path in ["/", "/events", "/report/a.html"] {
            assert!(!refuses(path, &[(SITE, "same-origin")]), "{path}");
            assert!(!refuses(path, &from("none")), "{path}");
            for site in ["cross-site", "same-site", "other"] {
                assert!(refuses(path, &[(SITE, site)]), "{path}");
                assert_eq!(refuses(path, &from(site)), path != "/", "{path}");
            }
        }
        let frame = [
            (SITE, "cross-site"),
            ("sec-fetch-mode", "navigate"),
            ("sec-fetch-dest", "iframe"),
        ];
        assert!(refuses("/", &frame));
    }
}
