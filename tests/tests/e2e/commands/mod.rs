//! The commands beside `migrate` and `receive`, and what each writes.

mod check;
mod cli_output;
mod control;
mod destination_line;
mod dirty_rate;
mod estimate;
mod standard_error;
mod status;
