//! stub
use crate::args::Demo;
use crate::exit::{Exit, Status};
pub fn run(_args: &Demo) -> Result<Status, Exit> { Ok(Status::Moved) }
