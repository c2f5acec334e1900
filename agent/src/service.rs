//! Notifies the service manager (sd_notify(3)); without `NOTIFY_SOCKET` it does nothing.

use std::time::{Duration, Instant};

use sd_notify::NotifyState;

/// Notifies the service manager of the agent's state.
#[derive(Debug)]
pub struct ServiceNotifier {
    /// How often the watchdog is notified, if the service manager has one.
    watchdog: Option<Duration>,
    last: Option<Instant>,
}

impl ServiceNotifier {
    /// Configured by the environment.
    pub fn new() -> Self {
        Self { watchdog: sd_notify::watchdog_enabled().map(|interval| interval / 2), last: None }
    }

    /// The agent has started.
    pub fn ready(&self) {
        tell(&[NotifyState::Ready]);
    }

    /// The agent reads its configuration again; [`Self::ready`] follows.
    pub fn reloading(&self) {
        match NotifyState::monotonic_usec_now() {
            Ok(now) => tell(&[NotifyState::Reloading, now]),
            Err(_) => tell(&[NotifyState::Reloading]),
        }
    }

    pub fn stopping(&self) {
        tell(&[NotifyState::Stopping]);
    }

    /// The longest time between calls of [`Self::alive`].
    pub fn every(&self) -> Option<Duration> {
        self.watchdog.map(|every| every / 2)
    }

    /// Notifies the watchdog if it is due.
    pub fn alive(&mut self, now: Instant) {
        if let Some(every) = self.watchdog
            && self.last.is_none_or(|last| now.saturating_duration_since(last) >= every)
        {
            self.last = Some(now);
            tell(&[NotifyState::Watchdog]);
        }
    }
}

impl Default for ServiceNotifier {
    fn default() -> Self {
        Self::new()
    }
}

fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::debug!("cannot notify the service manager: {error}");
    }
}
