//! The status of a migration while this program runs it: shown as progress, recorded, served on a
//! socket, and kept in a file when it has ended.
//!
//! The engine hands over a [`Live`](hikkoshi_engine::report::Live) when a migration begins. One
//! thread (`publisher.rs`) takes its state ten times a second (`sampler.rs`) and passes it on: to
//! the progress display, and to the recording, which clients of the status socket get
//! (`hikkoshi-status`). Now and then (`renewal.rs`) it stores the recording in the status folder.
//! At the source another thread serves the control socket (`control.rs`).

mod cells;
mod control;
mod converges;
mod publisher;
mod rates;
mod renewal;
mod report_file;
mod run_info;
mod sampler;
mod stored_file;
mod time_left;

pub(crate) use control::ShownChange;
pub(crate) use publisher::RunPublisher;
pub(crate) use report_file::write_page;
pub(crate) use run_info::RunInfo;
