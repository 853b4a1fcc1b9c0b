//! The report of one or several migrations, or of an evacuation: one file with everything in it.
//!
//! The summary is written here, so it needs no scripts. The pictures and the tables beside them are
//! drawn by the views of the live page, from the recordings in the file. Without scripts, tables
//! that are written here take their place.

mod bars;
mod both_sides;
mod compare;
mod evacuation;
mod format;
mod hot_ranges;
mod markup;
mod policy;
mod tables;

use std::fmt::Write;

use hikkoshi_status::{Evacuation, Recording, join_all};

use crate::assets::{ICON, UPLOT_LICENSE};
use both_sides::{BothSides, group};
use markup::{escape, escape_json};
pub use policy::{report_policy, served_report_policy};
use policy::{scripts, styles};

/// A report of migrations: an HTML page without references to other files. Both sides of one
/// migration are shown as one, and so are the engines that took part on one side, one after
/// another.
pub fn report(recordings: &[Recording]) -> String {
    page(None, recordings)
}

/// A report of an evacuation, and of its moves as far as there are recordings of them.
pub fn evacuation_report(evacuation: &Evacuation, recordings: &[Recording]) -> String {
    page(Some(evacuation), recordings)
}

fn page(evacuation: Option<&Evacuation>, recordings: &[Recording]) -> String {
    let recordings = join_all(recordings.to_vec());
    let migrations = group(&recordings);
    let mut page = match evacuation {
        Some(evacuation) => {
            let mut page = head(&format!("Evacuation of {} guests", evacuation.guests.len()));
            page.push_str(&evacuation::section(evacuation));
            page
        }
        None => head(&title(&migrations)),
    };
    if evacuation.is_none() || !migrations.is_empty() {
        page.push_str(&compare::summary(&migrations));
    }
    for (index, migration) in migrations.iter().enumerate() {
        page.push_str(&place(index, migration));
    }
    page.push_str("</main>\n");
    page.push_str(&footer());
    // The records have no maps with other keys than strings, the only way to fail.
    let data = serde_json::to_string(&recordings).unwrap_or_default();
    let _ = writeln!(page, "{RECORDINGS}{}</script>", escape_json(&data));
    for script in scripts() {
        let _ = writeln!(page, "<script>{script}</script>");
    }
    page.push_str("</body>\n</html>\n");
    page
}

/// The recordings in a page that [`report`] has made, as JSON. `None`: it is another page.
pub fn recordings_in(page: &str) -> Option<&str> {
    let (_, rest) = page.split_once(RECORDINGS)?;
    Some(rest.split_once("</script>")?.0)
}

/// What precedes the recordings in a page.
const RECORDINGS: &str = "<script type=\"application/json\" id=\"recordings\">";

fn title(migrations: &[BothSides<'_>]) -> String {
    match migrations {
        [one] => {
            let guest = one.migration().map_or("", |migration| &migration.guest);
            format!("Migration of {guest}")
        }
        several => format!("{} migrations", several.len()),
    }
}

fn head(title: &str) -> String {
    let mut head = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{}</title>\n\
         <link rel=\"icon\" href=\"data:image/svg+xml;base64,{}\">\n",
        escape(&report_policy()),
        escape(title),
        data_encoding::BASE64.encode(ICON.as_bytes())
    );
    for style in styles() {
        let _ = writeln!(head, "<style>{style}</style>");
    }
    let _ = write!(
        head,
        "</head>\n<body class=\"report\">\n<a class=\"skip\" href=\"#main\">Skip to the summary</a>\n\
         <header><h1>{}</h1><p class=\"note\">Report by hikkoshi {}</p></header>\n\
         <main id=\"main\" tabindex=\"-1\">\n",
        escape(title),
        env!("CARGO_PKG_VERSION")
    );
    head
}

/// Where the views of a migration are put, and its tables if there are no scripts.
fn place(index: usize, migration: &BothSides<'_>) -> String {
    format!(
        "<section id=\"migration-{}\" aria-label=\"{}\">\n<noscript>\n<h2>{1}</h2>\n{}</noscript>\n\
         </section>\n",
        escape(migration.id()),
        escape(&compare::name(index, migration)),
        tables::tables(migration)
    )
}

/// The licence of what is in the file.
fn footer() -> String {
    format!(
        "<footer><details><summary>Licence of the charting library uPlot</summary><pre>{}</pre>\
         </details></footer>\n",
        escape(UPLOT_LICENSE)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use hikkoshi_account::{Side, Statistics};
    use hikkoshi_status::{Block, End, Memory, Migration};
    use ring::digest::{SHA256, digest};

    const HOSTILE: &str = "</script><script>alert(1)</script><!--\"'&";

    /// A recording without states, with `text` wherever there is text.
    fn recording(side: Side, text: &str) -> Recording {
        let block = Block {
            id: text.into(),
            first_page: 0,
            pages: 512,
            guest: Vec::new(),
        };
        Recording::new(Migration {
            pid: 1,
            host: text.into(),
            peer: text.into(),
            memory: Memory {
                pages: 512,
                page_bytes: 4096,
                cell_pages: 512,
                blocks: vec![block],
            },
            ..Migration::new(text, side, text)
        })
    }

    /// What stands between these texts, each time.
    fn between<'a>(page: &'a str, begin: &str, end: &str) -> Vec<&'a str> {
        let parts = page.split(begin).skip(1);
        parts
            .map(|part| part.split(end).next().unwrap_or(part))
            .collect()
    }

    #[test]
    fn a_report_of_an_evacuation_has_a_row_for_each_guest() {
        use hikkoshi_status::{EVACUATION_VERSION, EvacuatedGuest, EvacuationStage, ReachedBy};
        let guest = |stage| EvacuatedGuest {
            to: Some(HOSTILE.to_owned()),
            began_unix_ms: Some(2000),
            ended_unix_ms: Some(5500),
            felt_ms: Some(12.5),
            ..EvacuatedGuest::new(ReachedBy::Qmp("/q".into()), stage)
        };
        let stays = EvacuationStage::Stays {
            message: HOSTILE.to_owned(),
        };
        let guests = [
            ("db".to_owned(), guest(EvacuationStage::Moved)),
            (HOSTILE.to_owned(), guest(stays)),
        ];
        let evacuation = Evacuation {
            version: EVACUATION_VERSION,
            started_unix_ms: Some(1000),
            ended_unix_ms: Some(7000),
            plan: None,
            guests: guests.into(),
        };
        let page = evacuation_report(&evacuation, &[recording(Side::Source, "db")]);
        assert!(page.contains("<h1>Evacuation of 2 guests</h1>"), "{page}");
        assert!(page.contains("1 guests have moved in 6.00 s"), "{page}");
        let rows = between(&page, "<th scope=\"row\">db</th>", "</tr>");
        let row = rows.iter().find(|row| row.contains(">moved<")).unwrap();
        for cell in ["1.00 s", "3.50 s", "12.5 ms"] {
            assert!(row.contains(cell), "{cell}: {row}");
        }
        assert!(!page.contains(HOSTILE), "{page}");
        let alone = evacuation_report(&evacuation, &[]);
        assert!(!alone.contains("0 migrations"), "{alone}");
    }

    #[test]
    fn the_policy_allows_exactly_the_scripts_and_styles_in_the_page() {
        let page = report(&[recording(Side::Source, "web")]);
        let policy = report_policy();
        let [declared] = between(&page, "Content-Security-Policy\" content=\"", "\">")[..] else {
            panic!("one policy");
        };
        assert_eq!(declared.replace("&#39;", "'"), policy);
        for (element, end, directive) in [
            ("<script>", "</script>", "script-src"),
            ("<style>", "</style>", "style-src"),
        ] {
            let digests: String = between(&page, element, end)
                .iter()
                .map(|text| {
                    let digest = digest(&SHA256, text.as_bytes());
                    format!(
                        " 'sha256-{}'",
                        data_encoding::BASE64.encode(digest.as_ref())
                    )
                })
                .collect();
            assert!(digests.len() > 100);
            assert!(
                policy.contains(&format!("; {directive}{digests};")),
                "{policy}"
            );
        }
        assert!(policy.starts_with("default-src 'none';"));
        assert!(!policy.contains("unsafe") && !policy.contains("http"));
    }

    /// Its times are those of its last engine.
    #[test]
    fn the_total_of_a_resumed_migration_is_that_of_all_engines() {
        let text = include_str!("../../../account/tests/account.json");
        let mut account: Box<Statistics> = serde_json::from_str(text).unwrap();
        account.account.total_ms = 90_000.5;
        let mut recordings = [recording(Side::Source, "web")];
        recordings[0].end = Some(End {
            at_ms: 4000,
            exit_status: 0,
            reason: "moved".into(),
            message: String::new(),
            next: None,
            account: Some(account.clone()),
        });
        let times = |recordings: &[Recording]| {
            let migration = &both_sides::group(recordings)[0];
            (migration.last_ms(), migration.total_ms())
        };
        assert_eq!(times(&recordings), (Some(4000), Some(4000)));
        account.account.engine_ms = Some(4000.5);
        recordings[0].end.as_mut().unwrap().account = Some(account);
        assert_eq!(times(&recordings), (Some(4000), Some(90_000)));
    }

    /// A script or style that ended its element early would be cut off, and refused.
    #[test]
    fn no_script_or_style_ends_its_element() {
        for text in scripts().chain(styles()) {
            let text = text.to_lowercase();
            assert!(!text.contains("</s") && !text.contains("<!--") && !text.contains("<script"));
        }
    }

    #[test]
    fn nothing_refers_to_another_file() {
        let page = report(&[recording(Side::Source, "web")]);
        for attribute in [" src=", "url(", "@import"] {
            assert!(!page.contains(attribute), "{attribute}");
        }
        let references = between(&page, "href=\"", "\"");
        assert_eq!(references.len(), 2, "{references:?}");
        assert!(
            references
                .iter()
                .all(|to| to.starts_with('#') || to.starts_with("data:"))
        );
    }

    #[test]
    fn text_of_recordings_is_escaped() {
        let recordings = [Side::Source, Side::Destination].map(|side| recording(side, HOSTILE));
        let page = report(&recordings);
        let plain = report(&[Side::Source, Side::Destination].map(|side| recording(side, "x")));
        for markup in ["<script", "</script>", "<!--", "alert(1)</"] {
            assert_eq!(
                page.matches(markup).count(),
                plain.matches(markup).count(),
                "{markup}"
            );
        }
        let [data] = between(&page, "id=\"recordings\">", "</script>")[..] else {
            panic!("one element with data");
        };
        let read: Vec<Recording> = serde_json::from_str(data).expect("the data is JSON");
        assert_eq!(read, recordings);
    }

    /// Both sides of a migration have one place; another migration has its own.
    #[test]
    fn sides_of_one_migration_are_shown_together() {
        let page = report(&[
            recording(Side::Destination, "web"),
            recording(Side::Source, "mail"),
            recording(Side::Source, "web"),
        ]);
        let places = between(&page, "<section id=\"migration-", "\"");
        assert_eq!(places, ["web", "mail"]);
        assert!(page.contains("<title>2 migrations</title>"));
    }

    /// One that is made of a report again has the same.
    #[test]
    fn engines_of_one_side_are_shown_together() {
        let killed = recording(Side::Source, "web");
        let mut resumed = killed.clone();
        resumed.migration.pid = 2;
        resumed.migration.started_unix_ms = 60_000;
        resumed.migration.resumed = true;
        let page = report(&[resumed, killed]);
        assert!(page.contains("the engine (process 1) was killed"));
        let read: Vec<Recording> =
            serde_json::from_str(recordings_in(&page).expect("it has recordings")).expect("JSON");
        assert_eq!((read.len(), read[0].engines.len()), (1, 2));
        assert_eq!(report(&read), page);
    }

    #[test]
    fn a_report_of_nothing_is_a_page() {
        assert!(report(&[]).contains("<h1>0 migrations</h1>"));
    }
}
