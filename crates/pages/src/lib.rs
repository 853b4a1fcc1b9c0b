//! Page numbers and ranges, the RAM layout, the atomic page bitmap with claim, the zero-page test.
