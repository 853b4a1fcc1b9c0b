//! Files for the guest's web server: the content follows from the file's number, so that clients
//! can check it.
//!
//! A file consists of little-endian words: its number, filling, and a checksum over all before it
//! (the same as in `page.rs`).

use crate::page::{SUM_START, filling, fold};
use std::fs;
use std::io;
use std::path::Path;

/// Writes the files `0` to `count - 1` of `bytes` bytes each; `bytes` is a multiple of 8.
pub(crate) fn write_all(folder: &Path, count: u64, bytes: usize) -> io::Result<()> {
    let mut content = Vec::with_capacity(bytes);
    for number in 0..count {
        fill(&mut content, number, bytes);
        fs::write(folder.join(number.to_string()), &content)?;
    }
    Ok(())
}

fn fill(content: &mut Vec<u8>, number: u64, bytes: usize) {
    content.clear();
    let (mut word, step) = filling(number, bytes as u64);
    let mut sum = fold(SUM_START, number);
    content.extend_from_slice(&number.to_le_bytes());
    for _ in 2..(bytes / 8) {
        content.extend_from_slice(&word.to_le_bytes());
        sum = fold(sum, word);
        word = word.wrapping_add(step);
    }
    content.extend_from_slice(&sum.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_size_number_and_checksum() {
        let (mut one, mut two) = (Vec::new(), Vec::new());
        fill(&mut one, 7, 4000);
        fill(&mut two, 8, 4000);
        assert_eq!((one.len(), two.len()), (4000, 4000));
        assert_eq!(one[..8], 7u64.to_le_bytes());
        let words: Vec<u64> = one
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(word.try_into().unwrap()))
            .collect();
        let sum = words[..499].iter().copied().fold(SUM_START, fold);
        assert_eq!(words[499], sum);
        assert_ne!(one[8..16], two[8..16]);
    }
}
