//! Values with numbers from 0 on. A number is never given twice, and removed values take no memory.

use std::ops::{Index, IndexMut};

/// Values of one page: its memory is freed when the last of them is removed.
const PAGE: usize = 256;

struct SlotPage<T> {
    slots: Vec<Option<T>>,
    held: usize,
}

/// Values by their numbers, in pages.
pub(crate) struct Slots<T> {
    pages: Vec<Option<Box<SlotPage<T>>>>,
    next: usize,
    held: usize,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self { pages: Vec::new(), next: 0, held: 0 }
    }
}

impl<T> Slots<T> {
    pub(crate) fn next(&self) -> usize {
        self.next
    }

    /// The number of values.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Adds a value; returns its number.
    pub fn push(&mut self, thing: T) -> usize {
        let at = self.next;
        self.insert(at, thing);
        at
    }

    /// Adds a value under a free number.
    pub fn insert(&mut self, at: usize, thing: T) {
        self.next = self.next.max(at + 1);
        let page = at / PAGE;
        if self.pages.len() <= page {
            self.pages.resize_with(page + 1, || None);
        }
        let page = self.pages[page].get_or_insert_with(|| Box::new(SlotPage { slots: Vec::new(), held: 0 }));
        if page.slots.len() <= at % PAGE {
            page.slots.resize_with(at % PAGE + 1, || None);
        }
        let before = page.slots[at % PAGE].replace(thing);
        debug_assert!(before.is_none(), "something has the number {at}");
        page.held += 1;
        self.held += 1;
    }

    pub(crate) fn get(&self, at: usize) -> Option<&T> {
        self.pages.get(at / PAGE)?.as_ref()?.slots.get(at % PAGE)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, at: usize) -> Option<&mut T> {
        self.pages.get_mut(at / PAGE)?.as_mut()?.slots.get_mut(at % PAGE)?.as_mut()
    }

    pub(crate) fn remove(&mut self, at: usize) -> Option<T> {
        let page = self.pages.get_mut(at / PAGE)?;
        let inner = page.as_mut()?;
        let thing = inner.slots.get_mut(at % PAGE)?.take()?;
        inner.held -= 1;
        self.held -= 1;
        // The page that is being filled is soon needed again.
        if inner.held == 0 && at / PAGE != self.next / PAGE {
            *page = None;
        }
        Some(thing)
    }

    /// All values with their numbers, in order.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &T)> {
        self.iter_from(0)
    }

    /// The values from a number on.
    pub fn iter_from(&self, from: usize) -> impl Iterator<Item = (usize, &T)> {
        self.pages.iter().enumerate().skip(from / PAGE).flat_map(move |(page, inner)| {
            let slots = inner.iter().flat_map(|inner| inner.slots.iter().enumerate());
            slots.filter_map(move |(at, slot)| Some((page * PAGE + at, slot.as_ref()?)).filter(|(at, _)| *at >= from))
        })
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.pages.iter_mut().flatten().flat_map(|page| page.slots.iter_mut()).flatten()
    }
}

impl<T> Index<usize> for Slots<T> {
    type Output = T;

    /// The value of a number that is in use.
    fn index(&self, at: usize) -> &T {
        match self.get(at) {
            Some(thing) => thing,
            None => panic!("nothing has the number {at}"),
        }
    }
}

impl<T> IndexMut<usize> for Slots<T> {
    fn index_mut(&mut self, at: usize) -> &mut T {
        match self.get_mut(at) {
            Some(thing) => thing,
            None => panic!("nothing has the number {at}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_given_once_and_memory_returns() {
        let mut slots = Slots::default();
        (0..2_000u32).for_each(|i| assert_eq!(slots.push(i), i as usize));
        (0..1_900).for_each(|i| assert_eq!(slots.remove(i), Some(i as u32)));
        assert_eq!((slots.remove(5), slots.get(5), slots.held()), (None, None, 100));
        assert_eq!(slots.pages.iter().filter(|page| page.is_some()).count(), 1);
        assert_eq!(slots.iter().map(|(at, thing)| (at, *thing)).next(), Some((1_900, 1_900)));
        slots.insert(5_000, 7);
        slots.insert(4_990, 6);
        assert_eq!((slots.push(8), slots[5_000], slots[4_990], slots.next()), (5_001, 7, 6, 5_002));
        assert_eq!(slots.values_mut().count(), 103);
    }
}
