//! What the service manager is told (sd_notify(3)), where there is one: without `NOTIFY_SOCKET` nothing happens.

use sd_notify::NotifyState;

/// The server answers.
pub(crate) fn ready() {
    tell(&[NotifyState::Ready]);
}

/// It reads its configuration again; [`ready`] follows.
pub(crate) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(_) => tell(&[NotifyState::Reloading]),
    }
}

/// It goes down.
pub(crate) fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// Says at half the interval that the service manager asks for that the runtime still gets to its tasks.
pub(crate) async fn watchdog() {
    let Some(interval) = sd_notify::watchdog_enabled() else { return };
    loop {
        tell(&[NotifyState::Watchdog]);
        tokio::time::sleep(interval / 2).await;
    }
}

fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::debug!("cannot tell the service manager: {error}");
    }
}
