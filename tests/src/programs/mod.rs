//! Programs under test, and those around them: how they run and exit, and what they write.

pub(crate) mod exits;
pub(crate) mod libvirt_host;
pub(crate) mod program;
pub(crate) mod refusal;
pub(crate) mod remote_shell;
pub(crate) mod sshd;
pub(crate) mod terminal;
pub(crate) mod thread_scheduling;
