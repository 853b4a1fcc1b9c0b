//! Shared by the test guest's program and the lab: the content of a checked page. The lab fills a
//! guest's disk with such pages and checks it afterwards.

pub mod page;
