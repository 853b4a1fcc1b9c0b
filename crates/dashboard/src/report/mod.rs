//! The report of one or several migrations: one file with everything in it.
//!
//! The summary is written here, so it needs no scripts. The pictures and the tables beside them are
//! drawn by the views of the live page, from the recordings in the file. Without scripts, tables
//! that are written here take their place.

mod both_sides;
mod compare;
mod format;
mod markup;
mod policy;
mod tables;

use std::fmt::Write;

use hikkoshi_status::Recording;

use crate::assets::UPLOT_LICENSE;
use both_sides::{BothSides, group};
use markup::{escape, escape_json};
pub use policy::report_policy;
use policy::{scripts, styles};

/// A report of migrations: an HTML page without references to other files. Both sides of one
/// migration are shown as one.
pub fn report(recordings: &[Recording]) -> String {
    let migrations = group(recordings);
    let mut page = head(&migrations);
    page.push_str(&compare::summary(&migrations));
    for (index, migration) in migrations.iter().enumerate() {
        page.push_str(&place(index, migration));
    }
    page.push_str("</main>\n");
    page.push_str(&footer());
    // The records have no maps with other keys than strings, the only way to fail.
    let data = serde_json::to_string(recordings).unwrap_or_default();
    let _ = writeln!(
        page,
        "<script type=\"application/json\" id=\"recordings\">{}</script>",
        escape_json(&data)
    );
    for script in scripts() {
        let _ = writeln!(page, "<script>{script}</script>");
    }
    page.push_str("</body>\n</html>\n");
    page
}

fn head(migrations: &[BothSides<'_>]) -> String {
    let title = match migrations {
        [one] => {
            let guest = one.migration().map_or("", |migration| &migration.guest);
            format!("Migration of {guest}")
        }
        several => format!("{} migrations", several.len()),
    };
    let mut head = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{}</title>\n",
        escape(&report_policy()),
        escape(&title)
    );
    for style in styles() {
        let _ = writeln!(head, "<style>{style}</style>");
    }
    let _ = write!(
        head,
        "</head>\n<body class=\"report\">\n<a class=\"skip\" href=\"#main\">Skip to the summary</a>\n\
         <header><h1>{}</h1><p class=\"note\">Report by hikkoshi {}</p></header>\n\
         <main id=\"main\" tabindex=\"-1\">\n",
        escape(&title),
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
