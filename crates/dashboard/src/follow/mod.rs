//! Follows all migrations of a status folder, and keeps what is known about each.
//!
//! A thread lists the folder four times a second. It reads the files of migrations that it does not
//! follow, and starts a thread for each socket, which reads the records of the engine there. Both
//! report to [`Migrations`], which keeps a recording for each entry of the folder and passes each
//! change to the subscribers.
//!
//! If an engine has resumed what another one had begun, its recording is joined to that one's, here
//! and nowhere else: the page, the reports and the metrics get joined recordings.
//!
//! Of other hosts, a thread reads what a process of its own prints that asks them.
//!
//! Nothing is written to the folder, and nothing is sent to an engine.

mod events;
pub(crate) mod hosts;
mod known;
mod migrations;
mod subscription;
mod watch;

pub(crate) use known::{Known, Whole};
pub(crate) use migrations::{Migrations, View};
pub(crate) use subscription::Subscription;
pub(crate) use watch::FolderWatch;
