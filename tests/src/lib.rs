//! End-to-end tests with real guests.
