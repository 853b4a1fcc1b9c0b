//! `hikkoshi history`: what was moved, from the recordings of this host.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use error_reporter::Report;
use hikkoshi_status::{History, PastMigration, StatusFolder};

use crate::args::HistoryArgs;
use crate::output::exit::{Exit, ExitStatus};
use crate::output::reason::Reason;
use crate::output::{history, streams};

/// The fewest digits of a number.
const DIGITS: usize = 4;

pub(crate) fn run(args: &HistoryArgs) -> Result<ExitStatus, Exit> {
    let folder = StatusFolder::in_run_folder(&args.journals.path());
    let history = History::read(&folder).map_err(|error| {
        Exit::caused(ExitStatus::Usage, Reason::System, &error).with(
            "run this command as the user who runs `hikkoshi migrate`; --journal names another \
             folder",
        )
    })?;
    for skipped in &history.skipped {
        let path = skipped.path.display();
        streams::notice(&format!("{path} is skipped: {}", Report::new(&skipped.why)));
    }
    let began = args
        .since
        .map(|since| since_unix_ms(since, SystemTime::now()));
    let is_meant = |past: &&PastMigration| {
        began.is_none_or(|began| past.started_unix_ms >= began)
            && args.guest.as_deref().is_none_or(|guest| is_of(past, guest))
    };
    let meant: Vec<&PastMigration> = history.migrations.iter().filter(is_meant).collect();
    match args.json {
        true => streams::to_stdout(&history::json_lines(&meant)),
        false => streams::lines_to_stdout(&history::table(&meant)),
    }
    Ok(ExitStatus::Done)
}

/// The time that long ago, in milliseconds since 1970.
fn since_unix_ms(since: Duration, now: SystemTime) -> u64 {
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let began = now.saturating_sub(since).as_millis();
    u64::try_from(began).unwrap_or(u64::MAX)
}

/// Whether `text` is its guest, or its number or the beginning of it.
fn is_of(past: &PastMigration, text: &str) -> bool {
    past.guest == text || text.len() >= DIGITS && past.id.starts_with(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_counted_from_now() {
        let now = UNIX_EPOCH + Duration::from_secs(1000);
        assert_eq!(since_unix_ms(Duration::from_secs(300), now), 700_000);
        assert_eq!(since_unix_ms(Duration::from_secs(3000), now), 0);
    }
}
