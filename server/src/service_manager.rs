//! Notifications to the service manager (sd_notify(3)); without `NOTIFY_SOCKET` nothing happens.

use sd_notify::NotifyState;

pub(crate) fn ready() {
    notify(&[NotifyState::Ready]);
}

/// The configuration is being reloaded; [`ready`] follows.
pub(crate) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => notify(&[NotifyState::Reloading, now]),
        Err(_) => notify(&[NotifyState::Reloading]),
    }
}

pub(crate) fn stopping() {
    notify(&[NotifyState::Stopping]);
}

/// Notifies the watchdog at half the interval that the service manager asks for, to show that the runtime runs its tasks.
pub(crate) async fn watchdog() {
    let Some(interval) = sd_notify::watchdog_enabled() else { return };
    loop {
        notify(&[NotifyState::Watchdog]);
        tokio::time::sleep(interval / 2).await;
    }
}

fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::debug!("cannot notify the service manager: {error}");
    }
}
