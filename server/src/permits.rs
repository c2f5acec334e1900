//! Permits for concurrent work, in a number that a reload can change.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A semaphore whose number of permits can be changed.
#[derive(Debug)]
pub(crate) struct Permits {
    semaphore: Arc<Semaphore>,
    most: AtomicUsize,
}

impl Permits {
    pub fn new(most: usize) -> Self {
        Self { semaphore: Arc::new(Semaphore::new(most)), most: AtomicUsize::new(most) }
    }

    pub fn most(&self) -> usize {
        self.most.load(Ordering::Relaxed)
    }

    /// Returns a permit if one is free.
    pub fn try_take(&self) -> Option<OwnedSemaphorePermit> {
        self.semaphore.clone().try_acquire_owned().ok()
    }

    /// Waits for a permit; never returns `None`.
    pub async fn take(&self) -> Option<OwnedSemaphorePermit> {
        self.semaphore.clone().acquire_owned().await.ok()
    }

    /// Changes the number of permits. A decrease takes effect as permits are returned. Call it within the runtime.
    pub fn set(&self, most: usize) {
        let before = self.most.swap(most, Ordering::Relaxed);
        if most > before {
            self.semaphore.add_permits(most - before);
        } else if let Ok(fewer) = u32::try_from(before - most)
            && fewer > 0
        {
            let semaphore = self.semaphore.clone();
            tokio::spawn(async move {
                if let Ok(permits) = semaphore.acquire_many_owned(fewer).await {
                    permits.forget();
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn places_come_at_once_and_go_as_work_ends() {
        let places = Permits::new(2);
        let held = [places.try_take().unwrap(), places.try_take().unwrap()];
        assert!(places.try_take().is_none());
        places.set(3);
        let third = places.try_take().unwrap();
        places.set(1);
        drop(third);
        tokio::task::yield_now().await;
        assert!(places.try_take().is_none(), "three work or worked, one is allowed");
        drop(held);
        // The task that takes the surplus away runs when it is woken.
        while places.semaphore.available_permits() != 1 {
            tokio::task::yield_now().await;
        }
        let one = places.try_take();
        assert!(one.is_some() && places.try_take().is_none() && places.most() == 1);
    }
}
