//! Commands to a sampler thread, and what it hands back, without a lock: a [`Stack`] for each direction.
//!
//! The sender allocates a command. The sampler takes all commands with one swap, exchanges their parts with its own, and puts the same boxes on the
//! second stack, so that the sender frees what has to be freed.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A lock-free queue of boxes, kept as a linked stack: [`Stack::take`] takes all and reverses them, so the first pushed comes first.
#[derive(Debug)]
pub struct Stack<T> {
    top: AtomicPtr<StackNode<T>>,
}

/// A box for a [`Stack`].
#[derive(Debug)]
pub struct StackNode<T> {
    pub value: T,
    next: *mut StackNode<T>,
}

// SAFETY: a node is owned by exactly one box at any time; the pointer in it is only used by the stack that owns the node.
unsafe impl<T: Send> Send for StackNode<T> {}

impl<T> StackNode<T> {
    pub fn new(value: T) -> Box<Self> {
        Box::new(Self { value, next: ptr::null_mut() })
    }
}

impl<T> Default for Stack<T> {
    fn default() -> Self {
        Self { top: AtomicPtr::new(ptr::null_mut()) }
    }
}

impl<T> Stack<T> {
    /// Pushes a box. Allocates nothing.
    pub fn push(&self, node: Box<StackNode<T>>) {
        let raw = Box::into_raw(node);
        let mut top = self.top.load(Ordering::Relaxed);
        loop {
            // SAFETY: `raw` came from the box above and is not shared until the exchange below succeeds.
            unsafe { (*raw).next = top };
            match self.top.compare_exchange_weak(top, raw, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => top = now,
            }
        }
    }

    /// Takes all boxes, the first pushed first.
    pub fn take(&self) -> StackIter<T> {
        if self.top.load(Ordering::Relaxed).is_null() {
            return StackIter { next: ptr::null_mut() };
        }
        let mut from = self.top.swap(ptr::null_mut(), Ordering::Acquire);
        let mut reversed = ptr::null_mut();
        while !from.is_null() {
            // SAFETY: the swap made this thread the only owner of the whole chain of boxes.
            let next = unsafe { std::mem::replace(&mut (*from).next, reversed) };
            reversed = from;
            from = next;
        }
        StackIter { next: reversed }
    }
}

impl<T> Drop for Stack<T> {
    fn drop(&mut self) {
        drop(self.take());
    }
}

/// Boxes taken from a stack, in the order in which they were pushed.
#[derive(Debug)]
pub struct StackIter<T> {
    next: *mut StackNode<T>,
}

impl<T> Iterator for StackIter<T> {
    type Item = Box<StackNode<T>>;

    fn next(&mut self) -> Option<Box<StackNode<T>>> {
        if self.next.is_null() {
            return None;
        }
        // SAFETY: the chain is owned by this iterator and every node in it came from a box.
        let mut node = unsafe { Box::from_raw(self.next) };
        self.next = std::mem::replace(&mut node.next, ptr::null_mut());
        Some(node)
    }
}

impl<T> Drop for StackIter<T> {
    fn drop(&mut self) {
        self.for_each(drop);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn first_in_first_out_from_many_threads_and_nothing_leaks() {
        let stack = Arc::new(Stack::default());
        let held = Arc::new(());
        let threads: Vec<_> = (0..4)
            .map(|thread| {
                let (stack, held) = (stack.clone(), held.clone());
                std::thread::spawn(move || {
                    (0..1000).for_each(|n| stack.push(StackNode::new((thread, n, held.clone()))))
                })
            })
            .collect();
        let mut last = [-1; 4];
        let mut seen = 0;
        while seen < 3900 {
            for node in stack.take() {
                let (thread, n, _) = node.value;
                assert!(n > last[thread], "in the order pushed");
                last[thread] = n;
                seen += 1;
            }
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        drop(stack);
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
