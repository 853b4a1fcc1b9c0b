//! What the page reports: errors, violations of its policy, and requests.

use serde_json::Value;
use std::collections::HashMap;

/// Errors in a message.
const ERRORS_IN_MESSAGE: usize = 20;

/// Something that the page's content-security policy has forbidden.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CspViolation {
    /// The directive, such as `script-src-elem`.
    pub directive: String,
    /// The URL that was forbidden. Empty if it was something in the page itself, such as a script.
    pub blocked: String,
}

/// A request that the page has made.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Request {
    /// The URL.
    pub url: String,
    /// What it is for, in DevTools' words: `Document`, `Script`, `Fetch`, `EventSource`,
    /// `WebSocket`.
    pub kind: String,
    /// The status of the answer.
    pub status: Option<u16>,
    /// Why it failed or was forbidden: `net::ERR_NAME_NOT_RESOLVED`, `csp`.
    pub failure: Option<String>,
}

/// The reports since the page was opened.
#[derive(Debug, Default)]
pub(super) struct Events {
    /// The page that was opened.
    url: String,
    /// The number of the last page that has loaded.
    loaded: Option<String>,
    crashed: bool,
    errors: Vec<String>,
    violations: Vec<CspViolation>,
    requests: Vec<Request>,
    /// Requests by their identifier. After a redirect the last one has it.
    by_id: HashMap<String, usize>,
}

impl Events {
    /// Forgets everything, because `url` is opened.
    pub(super) fn forget(&mut self, url: &str) {
        *self = Self {
            url: url.to_owned(),
            ..Self::default()
        };
    }

    /// Records a message, if it is an event of interest.
    pub(super) fn record(&mut self, message: &Value) {
        let event = &message["params"];
        match message["method"].as_str().unwrap_or_default() {
            "Page.lifecycleEvent" if event["name"] == "load" => {
                self.loaded = event["loaderId"].as_str().map(str::to_owned);
            }
            "Inspector.targetCrashed" => self.crashed = true,
            "Runtime.consoleAPICalled" if matches!(text(&event["type"]), "error" | "assert") => {
                let words = event["args"].as_array().into_iter().flatten();
                let words: Vec<_> = words.map(argument_text).collect();
                self.errors.push(words.join(" "));
            }
            "Runtime.exceptionThrown" => {
                self.errors.push(exception_text(&event["exceptionDetails"]));
            }
            "Log.entryAdded" if event["entry"]["level"] == "error" => {
                let entry = &event["entry"];
                let (what, url) = (text(&entry["text"]), text(&entry["url"]));
                self.errors.push(format!("{what} ({url})"));
            }
            "Audits.issueAdded" => self.record_issue(&event["issue"]["details"]),
            "Network.requestWillBeSent" => {
                self.record_request(event, &event["request"]["url"], text(&event["type"]));
            }
            "Network.webSocketCreated" => self.record_request(event, &event["url"], "WebSocket"),
            "Network.webTransportCreated" => {
                self.record_request(event, &event["url"], "WebTransport");
            }
            "Network.responseReceived" | "Network.webSocketHandshakeResponseReceived" => {
                let status = event["response"]["status"].as_u64();
                if let Some(request) = self.request(event) {
                    request.status = status.and_then(|status| status.try_into().ok());
                }
            }
            "Network.loadingFailed" => {
                let reasons = [&event["blockedReason"], &event["errorText"]];
                let reason = reasons.map(text).into_iter().find(|text| !text.is_empty());
                if let Some(request) = self.request(event) {
                    request.failure = Some(reason.unwrap_or("unknown").to_owned());
                }
            }
            _ => {}
        }
    }

    fn record_issue(&mut self, details: &Value) {
        let issue = &details["contentSecurityPolicyIssueDetails"];
        if let Some(directive) = issue["violatedDirective"].as_str() {
            self.violations.push(CspViolation {
                directive: directive.to_owned(),
                blocked: text(&issue["blockedURL"]).to_owned(),
            });
        }
    }

    fn record_request(&mut self, event: &Value, url: &Value, kind: &str) {
        let id = text(&event["requestId"]).to_owned();
        self.by_id.insert(id, self.requests.len());
        self.requests.push(Request {
            url: text(url).to_owned(),
            kind: kind.to_owned(),
            status: None,
            failure: None,
        });
    }

    fn request(&mut self, event: &Value) -> Option<&mut Request> {
        let index = *self.by_id.get(text(&event["requestId"]))?;
        self.requests.get_mut(index)
    }

    pub(super) fn has_loaded(&self, loader: &str) -> bool {
        self.loaded.as_deref() == Some(loader)
    }

    pub(super) fn crashed(&self) -> bool {
        self.crashed
    }

    pub(super) fn errors(&self) -> &[String] {
        &self.errors
    }

    pub(super) fn violations(&self) -> &[CspViolation] {
        &self.violations
    }

    pub(super) fn requests(&self) -> &[Request] {
        &self.requests
    }

    /// The requests to other origins than the page's.
    pub(super) fn foreign_requests(&self) -> Vec<Request> {
        let foreign = |request: &&Request| {
            // These have no server.
            let is_local = ["data:", "blob:", "about:"]
                .iter()
                .any(|scheme| request.url.starts_with(scheme));
            !is_local && origin(&request.url) != origin(&self.url)
        };
        self.requests.iter().filter(foreign).cloned().collect()
    }

    /// The last errors, for messages.
    pub(super) fn messages(&self) -> String {
        if self.errors.is_empty() {
            return "none".to_owned();
        }
        let first = self.errors.len().saturating_sub(ERRORS_IN_MESSAGE);
        self.errors[first..].join("; ")
    }
}

/// The scheme, host and port of a URL.
fn origin(url: &str) -> &str {
    let authority = url.find("://").map_or(0, |scheme| scheme + 3);
    let end = url[authority..].find(['/', '?', '#']);
    end.map_or(url, |end| &url[..authority + end])
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// An argument of `console.error`: a string without quotes, another value as JSON, an object as
/// DevTools describes it.
fn argument_text(argument: &Value) -> String {
    match (&argument["value"], &argument["description"]) {
        (Value::String(text), _) | (Value::Null, Value::String(text)) => text.clone(),
        (value, _) => value.to_string(),
    }
}

/// What was thrown, and where.
pub(super) fn exception_text(details: &Value) -> String {
    let exception = &details["exception"];
    let what = match exception {
        Value::Null => text(&details["text"]).to_owned(),
        _ => argument_text(exception),
    };
    match details["url"].as_str() {
        Some(url) => format!("{what} ({url})"),
        None => what,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn events(url: &str, messages: &[(&str, Value)]) -> Events {
        let mut events = Events::default();
        events.forget(url);
        for (method, params) in messages {
            events.record(&json!({ "method": method, "params": params }));
        }
        events
    }

    #[test]
    fn an_origin_is_scheme_host_and_port() {
        for url in [
            "http://a:80",
            "http://a:80/",
            "http://a:80?q",
            "http://a:80/b://c",
        ] {
            assert_eq!(origin(url), "http://a:80");
        }
    }

    #[test]
    fn a_redirect_is_a_request_of_its_own() {
        let sent =
            |url: &str| json!({ "requestId": "1", "request": { "url": url }, "type": "Fetch" });
        let events = events(
            "http://a/page",
            &[
                ("Network.requestWillBeSent", sent("http://a/x")),
                ("Network.requestWillBeSent", sent("http://b/x")),
                (
                    "Network.loadingFailed",
                    json!({ "requestId": "1", "errorText": "refused" }),
                ),
            ],
        );
        assert_eq!(events.requests().len(), 2);
        let foreign = events.foreign_requests();
        assert_eq!(foreign.len(), 1, "{foreign:?}");
        assert_eq!(foreign[0].url, "http://b/x");
        assert_eq!(foreign[0].failure.as_deref(), Some("refused"));
    }

    #[test]
    fn what_has_no_server_is_not_foreign() {
        let sent = |url: &str| {
            let params = json!({ "requestId": url, "request": { "url": url } });
            ("Network.requestWillBeSent", params)
        };
        let urls = ["data:,x", "blob:http://a/1", "http://a/2"];
        assert_eq!(events("http://a/", &urls.map(sent)).foreign_requests(), []);
    }

    #[test]
    fn an_error_has_all_words() {
        let args = json!([
            { "type": "string", "value": "count" },
            { "type": "number", "value": 1 },
            { "type": "object", "description": "Object" },
            { "type": "undefined" },
        ]);
        let called = |kind: &str| {
            let params = json!({ "type": kind, "args": args });
            ("Runtime.consoleAPICalled", params)
        };
        let events = events("http://a/", &[called("log"), called("error")]);
        assert_eq!(events.errors(), ["count 1 Object null"]);
    }
}
