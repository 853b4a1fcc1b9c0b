//! The reports: medians, tables, goals, plots, and the JSON file.

mod goals;
mod json;
mod medians;
pub(crate) mod plot;
mod table_format;
mod tables;
mod write_file;

pub(crate) use goals::goals_table;
pub(crate) use json::ResultFile;
pub(crate) use plot::write_plots;
pub(crate) use table_format::Table;
pub(crate) use tables::tables;
pub(crate) use write_file::write_file;
