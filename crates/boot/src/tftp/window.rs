//! The blocks of one transfer that are under way: sent, and not yet known to have come. Numbers wrap at 65536, so that a
//! file may be of any length; what is in memory is one window.

use std::collections::VecDeque;

/// What an acknowledgement came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acked {
    /// An old one, or one of something that was never sent. Nothing is sent for it: two ends that answer every double
    /// would double each other's for ever.
    Nothing,
    /// There is room for more; what is left under way was lost and is sent again.
    Further,
    /// The last block has come.
    Whole,
}

#[derive(Debug)]
pub struct Window {
    block: usize,
    most: usize,
    /// Bytes of the file not yet read.
    left: u64,
    /// The last block, which is shorter than the others, is under way or there.
    ended: bool,
    /// The number of the last block that has come.
    come: u16,
    under_way: VecDeque<Vec<u8>>,
}

impl Window {
    pub fn new(size: u64, block: usize, most: usize) -> Self {
        Self { block, most, left: size, ended: false, come: 0, under_way: VecDeque::new() }
    }

    /// How many bytes the next block has; `None`: no block is to be added now. The last is short, even if empty.
    pub fn next_length(&self) -> Option<usize> {
        let room = !self.ended && self.under_way.len() < self.most;
        room.then(|| usize::try_from(self.left).unwrap_or(usize::MAX).min(self.block))
    }

    /// The next block, as long as [`Window::next_length`] said.
    pub fn add(&mut self, block: Vec<u8>) {
        self.left -= (block.len() as u64).min(self.left);
        self.ended = block.len() < self.block;
        self.under_way.push_back(block);
    }

    pub fn acked(&mut self, number: u16) -> Acked {
        let count = usize::from(number.wrapping_sub(self.come));
        if count == 0 || count > self.under_way.len() {
            return Acked::Nothing;
        }
        self.under_way.drain(..count);
        self.come = number;
        if self.ended && self.under_way.is_empty() { Acked::Whole } else { Acked::Further }
    }

    /// Everything under way with its number.
    pub fn under_way(&self) -> impl Iterator<Item = (u16, &[u8])> {
        let numbers = (1..=u16::MAX).map(|step| self.come.wrapping_add(step));
        numbers.zip(self.under_way.iter().map(Vec::as_slice))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(window: &mut Window) {
        while let Some(length) = window.next_length() {
            window.add(vec![7; length]);
        }
    }

    fn numbers(window: &Window) -> Vec<u16> {
        window.under_way().map(|(number, _)| number).collect()
    }

    #[test]
    fn a_file_ends_with_a_short_block_even_an_empty_one() {
        for (size, lengths) in [(0, vec![0]), (3, vec![3]), (8, vec![8, 0]), (11, vec![8, 3])] {
            let mut window = Window::new(size, 8, 4);
            fill(&mut window);
            assert_eq!(window.under_way().map(|(_, block)| block.len()).collect::<Vec<_>>(), lengths, "{size}");
            let last = u16::try_from(lengths.len()).expect("few");
            assert_eq!(window.acked(last), Acked::Whole);
            assert_eq!(window.next_length(), None);
        }
    }

    #[test]
    fn what_was_lost_in_a_window_is_sent_again_from_there() {
        let mut window = Window::new(1000, 8, 4);
        fill(&mut window);
        assert_eq!(numbers(&window), [1, 2, 3, 4]);
        assert_eq!(window.acked(2), Acked::Further);
        fill(&mut window);
        assert_eq!(numbers(&window), [3, 4, 5, 6]);
    }

    #[test]
    fn doubles_and_what_was_never_sent_change_nothing() {
        let mut window = Window::new(1000, 8, 2);
        fill(&mut window);
        assert_eq!(window.acked(2), Acked::Further);
        fill(&mut window);
        for number in [2, 1, 0, 5, 65535] {
            assert_eq!(window.acked(number), Acked::Nothing, "{number}");
        }
        assert_eq!(numbers(&window), [3, 4]);
    }

    #[test]
    fn numbers_begin_again_after_65535() {
        let size = 70_000 * 8 + 5;
        let mut window = Window::new(size, 8, 16);
        let (mut sent, mut last) = (0_u64, 0);
        loop {
            fill(&mut window);
            sent += window.under_way().map(|(_, block)| block.len() as u64).sum::<u64>();
            last = numbers(&window).last().copied().unwrap_or(last);
            if window.acked(last) == Acked::Whole {
                break;
            }
        }
        assert_eq!((sent, usize::from(last)), (size, 70_001 - 65_536));
    }
}
