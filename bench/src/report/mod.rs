//! The reports: medians, tables, goals, plots, and the JSON file.

mod goals;
mod json;
mod medians;
mod plot;
mod table;
mod tables;

pub use goals::goals_table;
pub use json::ResultFile;
pub use plot::write_plots;
pub use tables::tables;
