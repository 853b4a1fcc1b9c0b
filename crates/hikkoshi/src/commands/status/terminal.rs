//! The terminal of standard output.

use std::io::{self, IsTerminal};

/// Its size.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    pub(super) columns: usize,
    pub(super) rows: usize,
}

/// Its size now, or 80 columns and 24 rows if that is not known. `None`: it is not a terminal on
/// which the cursor can be moved.
pub(super) fn size() -> Option<Size> {
    let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    let stdout = io::stdout();
    if is_dumb || !stdout.is_terminal() {
        return None;
    }
    let size = rustix::termios::tcgetwinsize(&stdout).ok();
    let size = size.filter(|size| size.ws_col > 0 && size.ws_row > 0);
    Some(match size {
        Some(size) => Size {
            columns: size.ws_col.into(),
            rows: size.ws_row.into(),
        },
        None => Size {
            columns: 80,
            rows: 24,
        },
    })
}
