//! Which mode to use: [`choose_mode`].

use hikkoshi_engine::Mode;

use crate::predict::{Converges, Prediction};

/// Pre-copy is chosen if it takes at most this many times as long as the fastest mode.
const PATIENCE: f64 = 2.0;

/// … or this much longer, s.
const MORE: f64 = 2.0;

/// Post-copy is chosen if the other mode sends at least this many times its bytes.
const SENT_TWICE: f64 = 1.6;

/// A mode, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The mode.
    pub mode: Mode,
    /// The reason, for people.
    pub reason: String,
}

/// Chooses among predictions for modes that are possible. `None` if there is none.
///
/// * **Pre-copy**, if it converges also in the hard scenario and does not take much longer than
///   the fastest mode: until the switchover, a loss of the line or of the destination costs
///   nothing, and the guest waits for no page.
/// * **Post-copy**, if a hybrid migration would send most pages twice.
/// * **Hybrid** otherwise.
#[must_use]
pub fn choose_mode(predictions: &[Prediction]) -> Option<Choice> {
    let of = |mode| {
        predictions
            .iter()
            .find(|prediction| prediction.mode == mode)
    };
    let (precopy, postcopy, hybrid) = (of(Mode::Precopy), of(Mode::Postcopy), of(Mode::Hybrid));
    let fastest = predictions
        .iter()
        .map(|prediction| prediction.total.likely)
        .fold(f64::INFINITY, f64::min);
    let mut why_not_precopy = String::new();
    if let Some(precopy) = precopy {
        let seconds = precopy.total.likely;
        match precopy.converges {
            Converges::Yes if seconds <= (fastest * PATIENCE).max(fastest + MORE) => {
                return Some(Choice {
                    mode: Mode::Precopy,
                    reason: format!(
                        "pre-copy converges in about {:.0} rounds and {} with a downtime of about \
                         {}, and the guest waits for no page afterwards",
                        precopy.rounds.likely,
                        time(seconds),
                        time(precopy.downtime.likely)
                    ),
                });
            }
            Converges::Yes => {
                why_not_precopy = format!(
                    "pre-copy would take {} instead of {}",
                    time(seconds),
                    time(fastest)
                );
            }
            Converges::Likely | Converges::Unlikely => {
                let limited = match precopy.limit {
                    Some(_) => " with this limit (--bandwidth)",
                    None => "",
                };
                why_not_precopy = format!("it is not certain that pre-copy converges{limited}");
            }
            Converges::No => {
                let than = match precopy.limit {
                    Some(_) => "the limit allows (--bandwidth)",
                    None => "the line carries",
                };
                why_not_precopy =
                    format!("the guest writes faster than {than}: pre-copy does not converge");
            }
        }
    }
    let and = if why_not_precopy.is_empty() {
        ""
    } else {
        ", and "
    };
    match (postcopy, hybrid) {
        (Some(postcopy), Some(hybrid))
            if hybrid.bytes.likely >= SENT_TWICE * postcopy.bytes.likely =>
        {
            Some(Choice {
                mode: Mode::Postcopy,
                reason: format!(
                    "{why_not_precopy}{and}hybrid would send {:.1} times as many bytes as post-copy, \
                     because the guest writes most of its memory meanwhile",
                    hybrid.bytes.likely / postcopy.bytes.likely.max(1.0)
                ),
            })
        }
        (_, Some(hybrid)) => Some(Choice {
            mode: Mode::Hybrid,
            reason: format!(
                "{why_not_precopy}{and}after one round, hybrid has about {} of post-copy left",
                time(hybrid.postcopy.likely)
            ),
        }),
        (Some(_), None) => Some(Choice {
            mode: Mode::Postcopy,
            reason: format!("{why_not_precopy}{and}hybrid is not possible"),
        }),
        (None, None) => precopy.map(|_| Choice {
            mode: Mode::Precopy,
            reason: match why_not_precopy.is_empty() {
                true => "it is the only mode that is possible".to_owned(),
                false => {
                    format!("it is the only mode that is possible, although {why_not_precopy}")
                }
            },
        }),
    }
}

/// Seconds, in a unit that fits.
fn time(seconds: f64) -> String {
    if seconds < 1.0 {
        format!("{:.0} ms", seconds * 1e3)
    } else if seconds < 10.0 {
        format!("{seconds:.1} s")
    } else {
        format!("{seconds:.0} s")
    }
}
