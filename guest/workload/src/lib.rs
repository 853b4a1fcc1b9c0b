//! What the test guest's program and the laboratory both know: the content of a checked page, so
//! that the laboratory can fill a guest's disk with such pages and check it afterwards.

pub mod page;
