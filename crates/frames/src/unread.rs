//! Which frames the guest did not get.

use crate::frame::Frame;

/// A frame that was transmitted on an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Captured {
    /// When, in nanoseconds since 1970, on the host's clock.
    pub at: u64,
    /// The frame.
    pub frame: Frame,
}

/// For each frame in `captured`, in the order of arrival, whether the guest did not get it. It was
/// paused at `paused` (nanoseconds since 1970). `queues` is what was left in each queue of the tap
/// device, in order.
///
/// The rule follows from how QEMU (7.2 and 10.0, `net/tap.c`) reads a tap device. While the guest is
/// paused, it still reads one frame of each queue, which it cannot pass to the network card, and
/// stops reading. That frame is lost to the guest, and everything in the queue comes after it. So:
///
/// * Frames in a queue were not received, even if they arrived before the pause: QEMU's main loop
///   was busy with pausing.
/// * If there are frames in the only queue, then the frame before them is the one that QEMU read
///   while the guest was paused, and the guest has received what came before that.
/// * If the only queue is empty, at most the last frame was not received: if it arrived after the
///   pause.
/// * With several queues it is not known which frame was in which. Then, and where the queue cannot
///   be found among the captured frames, what arrived after the pause counts as not received.
pub fn unread(captured: &[Captured], queues: &[Vec<Vec<u8>>], paused: u64) -> Vec<bool> {
    let mut missed: Vec<bool> = captured.iter().map(|frame| frame.at >= paused).collect();
    // What the guest has received for certain does not depend on the clocks of two processes.
    let received = match queues {
        [queue] if queue.is_empty() => captured.len().checked_sub(1),
        [queue] => beginning(captured, queue).map(|begins| begins.saturating_sub(1)),
        _ => None,
    };
    match queues {
        [] => {}
        [queue] => {
            for (index, missed) in missed.iter_mut().enumerate() {
                if let Some(received) = received {
                    *missed = index >= received && (*missed || !queue.is_empty());
                }
            }
        }
        several => {
            // The queued frames are the last of their flows, so the search begins at the end.
            let mut queued: Vec<&Vec<u8>> = several.iter().flatten().collect();
            for (frame, missed) in captured.iter().zip(&mut missed).rev() {
                let found = queued.iter().position(|read| **read == frame.frame.bytes);
                if let Some(index) = found {
                    queued.swap_remove(index);
                    *missed = true;
                }
            }
        }
    }
    missed
}

/// The index of the first frame that is in the queue; `None` if the queue is empty, or was filled
/// before the capture began.
fn beginning(captured: &[Captured], queue: &[Vec<u8>]) -> Option<usize> {
    let first = queue.first()?;
    // Frames may repeat, so the whole queue has to match. What arrived after the queue was read is
    // not in it.
    (0..captured.len()).find(|&index| {
        let from = captured.get(index..).unwrap_or_default();
        let mut pairs = from.iter().zip(queue);
        from.first()
            .is_some_and(|frame| frame.frame.bytes == *first)
            && pairs.all(|(frame, read)| frame.frame.bytes == *read)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Frames that arrive at 10, 20, 30, ...
    fn captured(contents: &[u8]) -> Vec<Captured> {
        let frame = |&content: &u8| Frame {
            bytes: vec![content; 60],
            ..Frame::default()
        };
        let times = (1..).map(|n| n * 10);
        times
            .zip(contents)
            .map(|(at, content)| Captured {
                at,
                frame: frame(content),
            })
            .collect()
    }

    /// The contents of the frames that the guest did not get.
    fn missed(contents: &[u8], queues: &[&[u8]], paused: u64) -> String {
        let queue = |contents: &&[u8]| contents.iter().map(|&byte| vec![byte; 60]).collect();
        let queues: Vec<_> = queues.iter().map(queue).collect();
        let missed = unread(&captured(contents), &queues, paused);
        assert_eq!(missed.len(), contents.len());
        let contents = contents.iter().zip(missed).filter(|(_, missed)| *missed);
        contents.map(|(&content, _)| char::from(content)).collect()
    }

    #[test]
    fn without_a_queue_only_the_time_counts() {
        assert_eq!(missed(b"abc", &[], 25), "c");
        assert_eq!(missed(b"abc", &[], 20), "bc");
        assert_eq!(missed(b"abc", &[], 99), "");
    }

    #[test]
    fn with_an_empty_queue_at_most_the_last_frame_was_not_received() {
        assert_eq!(missed(b"abc", &[b""], 25), "c");
        assert_eq!(missed(b"abc", &[b""], 20), "c");
        assert_eq!(missed(b"abc", &[b""], 99), "");
        assert_eq!(missed(b"", &[b""], 0), "");
    }

    #[test]
    fn queued_frames_were_not_received_even_if_they_came_before_the_pause() {
        // `b` was read by the paused QEMU, `c` waited when it paused.
        assert_eq!(missed(b"abcde", &[b"cde"], 35), "bcde");
        // What came after the queue was read is not in it.
        assert_eq!(missed(b"abcde", &[b"cd"], 35), "bcde");
        assert_eq!(missed(b"abcde", &[b"abcde"], 35), "abcde");
    }

    #[test]
    fn what_left_the_queue_earlier_was_received_whatever_the_clock_says() {
        assert_eq!(missed(b"abcde", &[b"e"], 25), "de");
    }

    #[test]
    fn repeated_frames_are_told_apart_by_what_follows() {
        assert_eq!(missed(b"aaab", &[b"aab"], 100), "aaab");
        assert_eq!(missed(b"aaab", &[b"ab"], 100), "aab");
    }

    #[test]
    fn a_queue_from_before_the_capture_says_nothing() {
        assert_eq!(missed(b"ab", &[b"xyab"], 15), "b");
    }

    #[test]
    fn frames_in_one_of_several_queues_were_not_received() {
        assert_eq!(missed(b"abcde", &[b"ce", b"d"], 45), "cde");
        assert_eq!(missed(b"aab", &[b"a", b""], 45), "a");
        assert_eq!(missed(b"abcde", &[b"", b"b"], 45), "be");
    }
}
