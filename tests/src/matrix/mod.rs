//! A table of guests, each of which is moved to and fro in every mode.
//!
//! A [`Row`] is a pair of machines for the same guest. Its guest boots at the source, moves to the
//! destination, back, and to the destination again, each time by another mode. The guest's own
//! verdict on its memory decides after each trip; its disk is checked at the end. A row about a
//! device has a probe, by which the guest uses the device before and after each trip. A row that
//! hikkoshi does not support must be refused, with the reason. [`run`] runs rows, and renders the
//! table of docs/matrix.md.

mod network;
mod outcome;
mod probe;
mod row;
mod rows;
mod table;

pub use row::Row;
pub use rows::rows;

use outcome::Outcome;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

/// Runs these rows, as many at once as a host has slots, and returns the table.
///
/// # Errors
/// When a row failed, with the table as well.
pub fn run(rows: Vec<Row>) -> Result<String, String> {
    let next = Mutex::new(rows.iter().enumerate());
    let outcomes = Mutex::new(Vec::new());
    let work = || {
        loop {
            let taken = next.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((number, row)) = taken else { return };
            // A row that fails must not keep the others from running.
            let outcome = catch_unwind(AssertUnwindSafe(|| row.run()))
                .unwrap_or_else(|panic| Outcome::failed(panic.as_ref()));
            crate::log(format!("{row}: {outcome}"));
            let mut outcomes = outcomes.lock().unwrap_or_else(PoisonError::into_inner);
            outcomes.push((number, outcome));
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..crate::environment::test_env::slots() {
            let thread = std::thread::Builder::new().name("matrix".to_owned());
            thread.spawn_scoped(scope, work).unwrap();
        }
    });
    let mut outcomes = outcomes
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    outcomes.sort_by_key(|(number, _)| *number);
    let table = table::render(rows.iter().zip(outcomes.iter().map(|(_, outcome)| outcome)));
    match outcomes.iter().any(|(_, outcome)| outcome.is_failure()) {
        true => Err(table),
        false => Ok(table),
    }
}
