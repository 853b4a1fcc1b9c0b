//! How many guests of one certificate may be received or awaited at a time, and how many it may ask
//! for at once: others have places, too.
//!
//! A certificate counts by its names, so that a renewed one is the same. A daemon that is restarted
//! counts from zero.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Requests at a time of one certificate.
const MAX_REQUESTS: usize = 4;

/// Counts the guests of each certificate.
#[derive(Debug, Clone)]
pub(super) struct CertificateLimits {
    most: usize,
    guests: Arc<Mutex<HashMap<String, Vec<Guest>>>>,
}

/// A guest that was asked for.
#[derive(Debug)]
struct Guest {
    name: String,
    /// The request is not answered yet; its number.
    request: Option<u64>,
}

/// A request that is being answered. If it is dropped, the guest does not count any more.
#[derive(Debug)]
pub(super) struct CountedRequest {
    limits: CertificateLimits,
    certificate: String,
    number: u64,
}

impl CertificateLimits {
    /// At most this many guests at a time, for each certificate.
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            guests: Arc::default(),
        }
    }

    /// A certificate for these names asks for a guest. `is_there` says whether a guest is received
    /// or awaited.
    ///
    /// # Errors
    /// It has too many; the text is for the source.
    pub(super) fn begin(
        &self,
        certificate: &str,
        guest: &str,
        is_there: impl Fn(&str) -> bool,
    ) -> Result<CountedRequest, String> {
        let mut all = self.lock();
        for guests in all.values_mut() {
            guests.retain(|guest| guest.request.is_some() || is_there(&guest.name));
        }
        all.retain(|_, guests| !guests.is_empty());
        let guests = all.entry(certificate.to_owned()).or_default();
        let requests: Vec<u64> = guests.iter().filter_map(|guest| guest.request).collect();
        if requests.len() >= MAX_REQUESTS {
            return Err("this certificate makes too many requests at a time: try again".to_owned());
        }
        if guests.len() >= self.most {
            return Err(format!(
                "this certificate has {} of the {} guests that can be received or awaited for it at \
                 a time (--max-guests-per-certificate at the destination)",
                guests.len(),
                self.most
            ));
        }
        let number = (0..).find(|number| !requests.contains(number)).unwrap_or(0);
        guests.push(Guest {
            name: guest.to_owned(),
            request: Some(number),
        });
        Ok(CountedRequest {
            limits: self.clone(),
            certificate: certificate.to_owned(),
            number,
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Vec<Guest>>> {
        self.guests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CountedRequest {
    /// The guest is awaited: it counts as long as it is there.
    pub(super) fn keep(self) {
        let mut all = self.limits.lock();
        let mut guests = all.get_mut(&self.certificate).into_iter().flatten();
        if let Some(guest) = guests.find(|guest| guest.request == Some(self.number)) {
            guest.request = None;
        }
    }
}

impl Drop for CountedRequest {
    fn drop(&mut self) {
        if let Some(guests) = self.limits.lock().get_mut(&self.certificate) {
            guests.retain(|guest| guest.request != Some(self.number));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_has_its_own_limit() {
        let limits = CertificateLimits::new(2);
        let there = |name: &str| name != "left";
        limits.begin("a", "one", there).unwrap().keep();
        limits.begin("a", "two", there).unwrap().keep();
        let refused = limits.begin("a", "three", there).unwrap_err();
        assert!(
            refused.contains("--max-guests-per-certificate"),
            "{refused}"
        );
        limits.begin("b", "three", there).unwrap().keep();
        // A guest that is not there any more does not count.
        let there = |name: &str| name != "one";
        limits.begin("a", "four", there).unwrap().keep();
        limits.begin("a", "five", there).unwrap_err();
    }

    #[test]
    fn a_request_that_fails_does_not_count() {
        let limits = CertificateLimits::new(1);
        let first = limits.begin("a", "one", |_| false).unwrap();
        limits.begin("a", "two", |_| false).unwrap_err();
        drop(first);
        // A name that is there already, for which the request fails.
        drop(limits.begin("a", "one", |_| true).unwrap());
        limits.begin("a", "two", |_| true).unwrap().keep();
        limits.begin("a", "three", |_| true).unwrap_err();
        limits.begin("a", "three", |_| false).unwrap();
    }

    #[test]
    fn requests_of_one_certificate_are_limited() {
        let limits = CertificateLimits::new(100);
        let mut requests: Vec<_> = (0..MAX_REQUESTS)
            .map(|number| limits.begin("a", &number.to_string(), |_| true).unwrap())
            .collect();
        let refused = limits.begin("a", "more", |_| true).unwrap_err();
        assert!(refused.contains("try again"), "{refused}");
        limits.begin("b", "more", |_| true).unwrap();
        requests.remove(1).keep();
        limits.begin("a", "more", |_| true).unwrap();
    }
}
