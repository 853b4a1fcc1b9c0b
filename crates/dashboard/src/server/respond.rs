//! Responses, with the headers that all have.

use std::convert::Infallible;

use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use hyper::{Response, StatusCode};

pub(super) type Answer = Response<BoxBody<Bytes, Infallible>>;

pub(super) const JSON: &str = "application/json";

/// The headers of all responses. Without CORS headers, pages of other sites cannot read them. These
/// also keep such pages from embedding them, and browsers from storing and guessing.
const HEADERS: [(HeaderName, &str); 5] = [
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (REFERRER_POLICY, "no-referrer"),
    (CACHE_CONTROL, "no-store"),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
    (
        HeaderName::from_static("cross-origin-opener-policy"),
        "same-origin",
    ),
];

/// A response with this body.
pub(super) fn answer(
    status: StatusCode,
    content_type: &'static str,
    body: BoxBody<Bytes, Infallible>,
) -> Answer {
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    let policy = HeaderValue::from_static(crate::CONTENT_SECURITY_POLICY);
    headers.insert(CONTENT_SECURITY_POLICY, policy);
    answer
}

/// A response with status 200.
pub(super) fn ok(content_type: &'static str, body: impl Into<Bytes>) -> Answer {
    answer(StatusCode::OK, content_type, Full::new(body.into()).boxed())
}

/// A response that says what is wrong with the request.
pub(super) fn refused(status: StatusCode, text: &str) -> Answer {
    let body = Full::new(format!("{text}\n").into());
    answer(status, "text/plain; charset=utf-8", body.boxed())
}
