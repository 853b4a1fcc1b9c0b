//! The result of `hikkoshi check`, as `--json` writes it (`docs/json.md`).

use error_reporter::Report;
use hikkoshi_engine::{Comparison, DestinationObstacle, Mode};
use hikkoshi_qemu::{AttachError, Checked};
use serde::Serialize;

pub(super) const MODES: [Mode; 3] = [Mode::Precopy, Mode::Postcopy, Mode::Hybrid];

/// The result.
#[derive(Debug, Serialize)]
pub(crate) struct CheckReport<'a> {
    /// Whether at least one mode is possible.
    pub(super) can_be_moved: bool,
    /// The modes that are possible from here, and to the destination if it was asked.
    pub(super) modes: Vec<String>,
    pub(super) obstacles: Vec<ObstacleReport>,
    /// The parts of the guest, this host's kernel, the privileges and the notes.
    #[serde(flatten)]
    pub(super) checked: &'a Checked,
    /// `null`: no destination was asked.
    pub(super) destination: Option<DestinationReport<'a>>,
}

#[derive(Debug, Serialize)]
pub(super) struct ObstacleReport {
    /// The modes in which the guest cannot be moved because of it.
    pub(super) modes: Vec<String>,
    pub(super) text: String,
}

#[derive(Debug, Serialize)]
pub(super) struct DestinationReport<'a> {
    /// `null`: it could not be asked.
    pub(super) protocol_version: Option<u16>,
    pub(super) obstacles: Vec<ObstacleReport>,
    pub(super) warnings: &'a [String],
    pub(super) error: Option<&'a str>,
}

impl<'a> CheckReport<'a> {
    /// `unfinished`: earlier migrations of the guest that prevent another one.
    pub(crate) fn new(
        checked: &'a Checked,
        unfinished: Vec<String>,
        destination: Option<&'a Result<Comparison, String>>,
    ) -> Self {
        let accepts = |mode| destination.is_none_or(|answer| accepts(answer, mode));
        // They exclude every mode.
        let mut others = unfinished;
        if let Some(error) = &checked.refused_disks {
            others.push(Report::new(error).to_string());
        }
        let is_free = others.is_empty();
        let modes: Vec<_> = modes(|mode| is_free && checked.allows(mode) && accepts(mode));
        Self {
            can_be_moved: !modes.is_empty(),
            modes,
            obstacles: others
                .into_iter()
                .map(ObstacleReport::to_every_mode)
                .chain(checked.obstacles.iter().map(ObstacleReport::new))
                .collect(),
            checked,
            destination: destination.map(DestinationReport::new),
        }
    }

    /// Whether the guest can be moved, perhaps not in all modes.
    pub(crate) fn can_be_moved(&self) -> bool {
        self.can_be_moved
    }
}

/// Whether the destination accepts a guest that is moved by this mode.
fn accepts(answer: &Result<Comparison, String>, mode: Mode) -> bool {
    let Ok(comparison) = answer else {
        return false;
    };
    let mut obstacles = comparison.obstacles.iter();
    !obstacles.any(|obstacle| obstacle.excludes(mode))
}

fn modes(is_one: impl Fn(Mode) -> bool) -> Vec<String> {
    let found = MODES.into_iter().filter(|mode| is_one(*mode));
    found.map(|mode| mode.to_string()).collect()
}

impl ObstacleReport {
    fn new(obstacle: &AttachError) -> Self {
        Self {
            modes: modes(|mode| obstacle.excludes().includes(mode)),
            text: obstacle.reason(),
        }
    }

    fn to_every_mode(text: String) -> Self {
        Self {
            modes: modes(|_| true),
            text,
        }
    }

    fn there(obstacle: &DestinationObstacle) -> Self {
        Self {
            modes: modes(|mode| obstacle.excludes(mode)),
            text: obstacle.reason.clone(),
        }
    }
}

impl<'a> DestinationReport<'a> {
    fn new(answer: &'a Result<Comparison, String>) -> Self {
        match answer {
            Ok(comparison) => Self {
                protocol_version: Some(comparison.version),
                obstacles: comparison
                    .obstacles
                    .iter()
                    .map(ObstacleReport::there)
                    .collect(),
                warnings: &comparison.warnings,
                error: None,
            },
            Err(error) => Self {
                protocol_version: None,
                obstacles: Vec::new(),
                warnings: &[],
                error: Some(error),
            },
        }
    }
}
