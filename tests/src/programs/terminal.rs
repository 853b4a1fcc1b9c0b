//! A terminal, and what a person sees on it.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// The rows of the terminal.
const ROWS: u16 = 30;

/// Rows above it that the emulator keeps.
const SCROLLBACK: usize = 1000;

/// A pseudo-terminal with an emulator that wraps its lines again when it is resized, as those of
/// desktops do.
#[derive(Debug, Clone)]
pub struct Terminal(Arc<Shared>);

struct Shared {
    controller: File,
    /// Kept open: the other end is not closed between two programs.
    user: OwnedFd,
    screen: Mutex<avt::Terminal>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Terminal").finish_non_exhaustive()
    }
}

impl Terminal {
    /// A terminal with so many columns.
    ///
    /// # Panics
    /// When the system has none.
    pub fn new(columns: u16) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let controller = openpt(flags).unwrap();
        grantpt(&controller).unwrap();
        unlockpt(&controller).unwrap();
        let name = ptsname(&controller, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let user = rustix::fs::open(name, flags, Mode::empty()).unwrap();
        let (wide, high) = (usize::from(columns), usize::from(ROWS));
        let screen = avt::Terminal::with_scrollback(wide, high, Some(SCROLLBACK));
        let terminal = Self(Arc::new(Shared {
            controller: controller.into(),
            user,
            screen: Mutex::new(screen.unwrap()),
        }));
        terminal.resize(columns);
        let shown = terminal.clone();
        // It ends with the test.
        std::thread::spawn(move || shown.show());
        terminal
    }

    /// What a program writes to.
    pub(crate) fn user_side(&self) -> OwnedFd {
        self.0.user.try_clone().unwrap()
    }

    /// A person changes the width of the window.
    ///
    /// # Panics
    /// When the system refuses it.
    pub fn resize(&self, columns: u16) {
        let mut screen = self.screen();
        screen.resize(usize::from(columns), usize::from(ROWS));
        let size = Winsize {
            ws_row: ROWS,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&self.0.controller, size).unwrap();
    }

    /// The rows that are seen, without empty ones at the end.
    pub fn rows(&self) -> Vec<String> {
        let screen = self.screen();
        let lines = screen.screen().visible_lines();
        let rows = lines.map(|line| line.text().trim_end().to_owned());
        let mut rows: Vec<_> = rows.collect();
        while rows.last().is_some_and(String::is_empty) {
            rows.pop();
        }
        rows
    }

    fn screen(&self) -> MutexGuard<'_, avt::Terminal> {
        self.0.screen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shows what programs write. All of it is ASCII, so that no character is split.
    fn show(&self) {
        let mut bytes = [0; 4096];
        while let Ok(read @ 1..) = (&self.0.controller).read(&mut bytes) {
            let text = String::from_utf8_lossy(&bytes[..read]);
            self.screen().feed(&*text);
        }
    }
}
