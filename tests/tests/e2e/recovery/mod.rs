//! Moves that are interrupted: by faults of links, engines, QEMUs and hosts, by a user, or by the
//! guest itself. What has ended is resumed, and nothing is lost.

mod after_commit;
mod cancel;
mod completion;
mod fault_drills;
pub(crate) mod journals;
mod killed_before_commit;
mod links_cut;
mod out_of_space;
mod private_memory;
mod shutdown;
