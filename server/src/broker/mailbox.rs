//! What waits for one subscriber: bounded in messages and in bytes, and never waited for.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::mpsc;

use super::subscriptions::Message;

/// The end that messages are put into. A clone leads to the same inbox.
#[derive(Debug, Clone)]
pub struct Mailbox {
    sender: mpsc::Sender<Message>,
    bytes: Arc<AtomicUsize>,
    bytes_max: usize,
}

/// The subscriber's end.
#[derive(Debug)]
pub struct Inbox {
    receiver: mpsc::Receiver<Message>,
    bytes: Arc<AtomicUsize>,
}

/// Both ends; at most so many messages wait, of so many bytes together.
pub fn mailbox(messages_max: usize, bytes_max: usize) -> (Mailbox, Inbox) {
    let (sender, receiver) = mpsc::channel(messages_max);
    let bytes = Arc::new(AtomicUsize::new(0));
    (Mailbox { sender, bytes: bytes.clone(), bytes_max }, Inbox { receiver, bytes })
}

/// Payloads are shared between subscribers; each counts them whole.
fn size(message: &Message) -> usize {
    message.topic.len() + message.payload.len()
}

impl Mailbox {
    /// Puts a message in unless there is no room, or nobody who would take it out.
    #[must_use]
    pub fn put(&self, message: Message) -> bool {
        let size = size(&message);
        let within = self.bytes.fetch_add(size, Ordering::Relaxed) + size <= self.bytes_max;
        let taken = within && self.sender.try_send(message).is_ok();
        if !taken {
            self.bytes.fetch_sub(size, Ordering::Relaxed);
        }
        taken
    }
}

impl Inbox {
    /// The next message, waiting for one. Loses nothing when cancelled.
    pub async fn take(&mut self) -> Option<Message> {
        let message = self.receiver.recv().await?;
        self.bytes.fetch_sub(size(&message), Ordering::Relaxed);
        Some(message)
    }

    /// The next message if there is one.
    pub fn take_now(&mut self) -> Option<Message> {
        let message = self.receiver.try_recv().ok()?;
        self.bytes.fetch_sub(size(&message), Ordering::Relaxed);
        Some(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn message(bytes: usize) -> Message {
        Message { topic: "t".into(), payload: Bytes::from(vec![0; bytes - 1]), retain: false }
    }

    #[test]
    fn both_bounds_hold_and_room_comes_back() {
        let (mailbox, mut inbox) = mailbox(3, 100);
        assert!(mailbox.put(message(60)));
        assert!(!mailbox.put(message(41)), "too many bytes");
        assert!(mailbox.put(message(40)));
        assert!(!mailbox.put(message(1)));
        assert_eq!(inbox.take_now().map(|m| m.payload.len()), Some(59));
        assert!(mailbox.put(message(30)) && mailbox.put(message(30)));
        assert!(!mailbox.put(message(1)), "too many messages");
        assert_eq!(std::iter::from_fn(|| inbox.take_now()).count(), 3);
        assert!(mailbox.put(message(100)), "all room is back");
        drop(inbox);
        assert!(!mailbox.put(message(1)), "nobody takes it");
    }
}
