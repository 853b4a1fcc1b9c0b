//! Which frames the guest did not get.

use std::ops::Range;

use crate::network_frame::NetworkFrame;

/// A frame that was transmitted on an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Captured {
    /// When, in nanoseconds since 1970, on the host's clock.
    pub at: u64,
    /// The frame.
    pub frame: NetworkFrame,
}

/// The frames that the guest, paused at `paused` (nanoseconds since 1970), did not get, in the
/// order of arrival. `captured` are the frames for each queue of the tap device, `left` is what was
/// left in each queue; in both, frames are in order, and the queues need not be. `starved`: the
/// guest's card may have had no receive buffer when it was paused.
///
/// The rule follows from how QEMU (7.2 and 10.0, `net/tap.c`, `net/net.c`) reads a tap device:
///
/// * While the guest is paused, QEMU still reads one frame of each queue, which it cannot pass to
///   the network card, and stops reading. That frame is lost to the guest.
/// * When the card has no receive buffer, QEMU has read one frame more than the card has taken, and
///   waits. It drops that frame when it pauses the guest, and reads on.
/// * All later frames are in the queue, even if they arrived before the pause.
///
/// So what was left in a queue, one frame before it, and if `starved` another one, were not
/// received. If nothing was left, the last frame is the one that the paused QEMU read, if it
/// arrived after the pause. Where it is not certain whether a starved card has taken a frame, the
/// frame counts as not received: twice is better than not at all.
pub fn unread(
    captured: Vec<Vec<Captured>>,
    left: Vec<Vec<NetworkFrame>>,
    paused: u64,
    starved: bool,
) -> Vec<Captured> {
    let mut left: Vec<_> = left.into_iter().filter(|queue| !queue.is_empty()).collect();
    let lost_in_qemu = if starved { 2 } else { 1 };
    let mut unread = Vec::new();
    let mut unmatched = Vec::new();
    for captured in captured {
        let mut queues = left.iter().enumerate();
        let found = queues.find_map(|(index, queue)| Some((index, overlap(&captured, queue)?)));
        match found {
            Some((index, overlap)) => {
                let queue = left.remove(index);
                let older = queue.len() - overlap.len();
                // If the capture began when the queue was already in use, nothing is known of
                // before.
                let before = if older > 0 { 0 } else { lost_in_qemu };
                unread.extend(
                    queue
                        .into_iter()
                        .take(older)
                        .map(|frame| Captured { at: 0, frame }),
                );
                let from = overlap.start.saturating_sub(before);
                unread.extend(captured.into_iter().skip(from));
            }
            None => unmatched.push(captured),
        }
    }
    for captured in unmatched {
        let after = captured.iter().position(|frame| frame.at >= paused);
        let after = after.unwrap_or(captured.len());
        // Where something was left that is not among the captured frames, it is not known when QEMU
        // has stopped reading.
        let from = match (left.is_empty(), starved) {
            (true, true) => captured.len().saturating_sub(lost_in_qemu),
            (true, false) => after.max(captured.len().saturating_sub(lost_in_qemu)),
            (false, true) => after.saturating_sub(lost_in_qemu),
            (false, false) => after,
        };
        let is_left =
            |frame: &NetworkFrame| left.iter().flatten().any(|left| left.bytes == frame.bytes);
        let rest = captured.into_iter().skip(from);
        unread.extend(rest.filter(|captured| !is_left(&captured.frame)));
    }
    let left = left.into_iter().flatten();
    unread.extend(left.map(|frame| Captured { at: 0, frame }));
    unread.sort_by_key(|frame| frame.at);
    unread
}

/// Which of the captured frames are in the queue: its end, and nothing else. Less than the queue if
/// the capture began later; what was captured afterwards is not in it. `None` if the queue belongs
/// to other frames.
fn overlap(captured: &[Captured], queue: &[NetworkFrame]) -> Option<Range<usize>> {
    // Frames may repeat, so all of them have to match. The queue was read just before the capture
    // was, so the end is tried first.
    (1..=captured.len()).rev().find_map(|end| {
        let start = end.saturating_sub(queue.len());
        let matching = captured.get(start..end)?;
        let queued = queue.get(queue.len().checked_sub(matching.len())?..)?;
        let mut pairs = matching.iter().zip(queued);
        pairs
            .all(|(captured, queued)| captured.frame.bytes == queued.bytes)
            .then_some(start..end)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Frames that arrive at 10, 20, 30, ...; a dot is a frame for another queue.
    fn captured(contents: &[u8]) -> Vec<Captured> {
        let frame = |&content: &u8| NetworkFrame {
            bytes: vec![content; 60],
            ..NetworkFrame::default()
        };
        let times = (1..).map(|n| n * 10);
        times
            .zip(contents)
            .filter(|(_, content)| **content != b'.')
            .map(|(at, content)| Captured {
                at,
                frame: frame(content),
            })
            .collect()
    }

    /// The contents of the frames that the guest did not get.
    fn missed_if(starved: bool, contents: &[&[u8]], queues: &[&[u8]], paused: u64) -> String {
        let frame = |&byte: &u8| NetworkFrame {
            bytes: vec![byte; 60],
            ..NetworkFrame::default()
        };
        let queues = queues.iter().map(|queue| queue.iter().map(frame).collect());
        let captured = contents.iter().map(|contents| captured(contents));
        let unread = unread(captured.collect(), queues.collect(), paused, starved);
        let contents = unread.iter().map(|frame| frame.frame.bytes[0]);
        contents.map(char::from).collect()
    }

    fn missed(contents: &[&[u8]], queues: &[&[u8]], paused: u64) -> String {
        missed_if(false, contents, queues, paused)
    }

    #[test]
    fn with_an_empty_queue_at_most_the_last_frame_was_not_received() {
        assert_eq!(missed(&[b"abc"], &[b""], 25), "c");
        assert_eq!(missed(&[b"abc"], &[b""], 20), "c");
        assert_eq!(missed(&[b"abc"], &[b""], 99), "");
        assert_eq!(missed(&[b""], &[b""], 0), "");
    }

    #[test]
    fn queued_frames_were_not_received_even_if_they_came_before_the_pause() {
        // `b` was read by the paused QEMU, `c` waited when it paused.
        assert_eq!(missed(&[b"abcde"], &[b"cde"], 35), "bcde");
        // What came after the queue was read is not in it.
        assert_eq!(missed(&[b"abcde"], &[b"cd"], 35), "bcde");
        assert_eq!(missed(&[b"abcde"], &[b"abcde"], 35), "abcde");
    }

    #[test]
    fn a_card_without_buffers_lost_one_more() {
        let starved = |contents, queue, paused| missed_if(true, &[contents], &[queue], paused);
        assert_eq!(starved(b"abcde", b"de", 99), "bcde");
        assert_eq!(starved(b"abcde", b"bcde", 99), "abcde");
        assert_eq!(starved(b"abcde", b"", 99), "de");
        assert_eq!(starved(b"a", b"", 99), "a");
    }

    #[test]
    fn what_left_the_queue_earlier_was_received_whatever_the_clock_says() {
        assert_eq!(missed(&[b"abcde"], &[b"e"], 25), "de");
    }

    #[test]
    fn repeated_frames_are_told_apart_by_what_follows() {
        assert_eq!(missed(&[b"aaab"], &[b"aab"], 100), "aaab");
        assert_eq!(missed(&[b"aaab"], &[b"ab"], 100), "aab");
    }

    #[test]
    fn a_queue_from_before_the_capture_is_delivered_whole() {
        assert_eq!(missed(&[b"ab"], &[b"xyab"], 15), "xyab");
        assert_eq!(missed_if(true, &[b"abc"], &[b"xyab"], 15), "xyabc");
        assert_eq!(missed(&[b"ab", b"..c"], &[b"xyab", b"c"], 15), "xyabc");
        // All of it.
        assert_eq!(missed(&[b""], &[b"xy"], 15), "xy");
    }

    #[test]
    fn frames_in_another_order_come_once() {
        assert_eq!(missed(&[b"abcd"], &[b"cb"], 35), "cbd");
    }

    #[test]
    fn each_queue_is_found_among_its_own_frames() {
        // In the order of the device, and in another one.
        for queues in [[b"c".as_slice(), b"d", b""], [b"", b"d", b"c"]] {
            let frames: [&[u8]; 3] = [b"a.c..", b".b.d.", b"....e"];
            assert_eq!(missed(&frames, &queues, 45), "abcde");
            assert_eq!(missed(&frames, &queues, 55), "abcd");
        }
    }
}
