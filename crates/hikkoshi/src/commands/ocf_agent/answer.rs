//! What an action answers: OCF's exit codes.

/// An exit code, as OCF 1.1 defines them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// 0: done; the guest is active here.
    Success,
    /// 1: it was not done, or the guest has failed.
    Failed,
    /// 2: a parameter cannot be used.
    Arguments,
    /// 3: there is no such action.
    Unimplemented,
    /// 5: a program or a file that is needed is not on this node.
    NotInstalled,
    /// 6: a parameter is missing, or cannot be used on any node.
    NotConfigured,
    /// 7: the guest is not active here.
    NotRunning,
}

impl Answer {
    /// The exit code.
    pub(super) const fn code(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::Failed => 1,
            Self::Arguments => 2,
            Self::Unimplemented => 3,
            Self::NotInstalled => 5,
            Self::NotConfigured => 6,
            Self::NotRunning => 7,
        }
    }
}
