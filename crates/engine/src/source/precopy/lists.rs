//! Divides runs of pages among the workers.

use hikkoshi_pages::PageRange;

/// Pages of a list that a worker sends, at least, unless fewer are left: 1 MiB.
const LIST: u64 = 256;

/// Lists of some 256 pages or more, for the workers to share. The pages of a run follow each other.
pub(super) fn lists(runs: &[PageRange]) -> Vec<Vec<PageRange>> {
    let mut lists: Vec<Vec<PageRange>> = Vec::new();
    let mut room = 0;
    for run in runs.iter().flat_map(|run| run.chunks(LIST)) {
        match lists.last_mut() {
            Some(list) if room > 0 => list.push(run),
            _ => {
                lists.push(vec![run]);
                room = LIST;
            }
        }
        room = room.saturating_sub(run.len());
    }
    lists
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use hikkoshi_pages::Page;

    #[test]
    fn lists_hold_all_pages_in_order() {
        let run = |start, pages| PageRange::from_len(Page::new(start), pages);
        assert_eq!(lists(&[]), Vec::<Vec<PageRange>>::new());
        let runs = [run(3, 1), run(10, 200), run(300, 600), run(1000, 2)];
        let expected = [
            vec![run(3, 1), run(10, 200), run(300, 256)],
            vec![run(556, 256)],
            vec![run(812, 88), run(1000, 2)],
        ];
        assert_eq!(lists(&runs), expected);
    }
}
