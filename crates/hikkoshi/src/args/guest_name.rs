//! Names of guests on the command line: they become parts of file names.

/// The longest name: that of a unix socket's path is 107 bytes.
const MAX_LEN: usize = 40;

/// The name of the guest of a template, if none is given.
pub(crate) const DEFAULT: &str = "guest";

/// Parses a name: letters, digits, `.`, `_` and `-`, not first.
pub(crate) fn parse(text: &str) -> Result<String, String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let first = text.chars().next();
    if text.len() > MAX_LEN
        || !first.is_some_and(|c| c.is_ascii_alphanumeric())
        || !text.chars().all(allowed)
    {
        return Err(format!(
            "a name has at most {MAX_LEN} letters, digits, '.', '_' and '-', and begins with a \
             letter or digit"
        ));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parts_of_file_names() {
        for good in ["a", "web-1.example_2", "0"] {
            assert_eq!(parse(good).unwrap(), good);
        }
        for bad in ["", ".", "..", "-a", "a/b", "a b", "ä", &"a".repeat(41)] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
