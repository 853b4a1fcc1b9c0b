//! Guest memory of each kind, on hosts of each kind.

mod auxiliary;
mod disk_files;
mod layouts;
mod limits;
mod returned;
mod swapped;
mod transparent_huge_pages;
