//! Permits for concurrent work, with a limit for each token.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::access::Role;
use crate::access::tokens::Bearer;
use crate::admission::{IdentityQuotas, QuotaPermit};
use crate::memory::{QueryMemory, RunningQuery};
use crate::permits::Permits;

/// Extra permits for administrators.
const ADMIN_PLACES: usize = 2;

/// Permits for one kind of work.
#[derive(Debug)]
pub(crate) struct TokenPermits {
    what: &'static str,
    common: Permits,
    reserve: Arc<Semaphore>,
    shares: Arc<IdentityQuotas>,
    memory: Option<Arc<QueryMemory>>,
}

/// No permit is free now; the message says which limit was reached.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct PermitRefused(pub String);

/// A permit, returned when dropped.
#[derive(Debug)]
pub(crate) struct TokenPermit {
    _permit: OwnedSemaphorePermit,
    _share: Option<QuotaPermit>,
    _running: Option<RunningQuery>,
}

impl TokenPermits {
    /// `most` in all, `each` for one token without role admin; `what` is the plural noun in messages.
    pub fn new(what: &'static str, most: usize, each: usize) -> Self {
        let (common, shares) = (Permits::new(most), IdentityQuotas::new(each));
        Self { what, common, reserve: Arc::new(Semaphore::new(ADMIN_PLACES)), shares, memory: None }
    }

    /// For queries: none starts while running ones exceed the memory limit.
    pub fn within(mut self, memory: Arc<QueryMemory>) -> Self {
        self.memory = Some(memory);
        self
    }

    /// Changes the numbers. Call it within the runtime.
    pub fn set(&self, most: usize, each: usize) {
        self.common.set(most);
        self.shares.set(each);
    }

    /// Takes a permit now, or says why there is none.
    pub fn try_take(&self, bearer: &Bearer) -> Result<TokenPermit, PermitRefused> {
        let share = self.share(bearer)?;
        match self.free(bearer) {
            Some(permit) => self.place(permit, share),
            None => Err(self.busy()),
        }
    }

    /// Takes a permit, and waits for one for up to `timeout`. A request that waits counts against its token.
    pub async fn take(&self, bearer: &Bearer, timeout: Duration) -> Result<TokenPermit, PermitRefused> {
        let share = self.share(bearer)?;
        let permit = match self.free(bearer) {
            Some(permit) => permit,
            None => {
                let waited = tokio::time::timeout(timeout, self.common.take()).await;
                waited.ok().flatten().ok_or_else(|| self.busy())?
            }
        };
        self.place(permit, share)
    }

    fn place(&self, permit: OwnedSemaphorePermit, share: Option<QuotaPermit>) -> Result<TokenPermit, PermitRefused> {
        let running = self.memory.as_ref().map(QueryMemory::admit).transpose().map_err(|taken| {
            let message = format!(
                "the {} that run have taken {} MiB of memory, which is the most (http.queries_memory_max); try again shortly",
                self.what,
                taken >> 20
            );
            PermitRefused(message)
        })?;
        Ok(TokenPermit { _permit: permit, _share: share, _running: running })
    }

    fn share(&self, bearer: &Bearer) -> Result<Option<QuotaPermit>, PermitRefused> {
        if bearer.role == Role::Admin {
            return Ok(None);
        }
        self.shares.take(&bearer.id).map(Some).ok_or_else(|| {
            let message =
                format!("{} {} of this token are running already; try again shortly", self.shares.most(), self.what);
            PermitRefused(message)
        })
    }

    fn free(&self, bearer: &Bearer) -> Option<OwnedSemaphorePermit> {
        let reserved = || self.reserve.clone().try_acquire_owned().ok();
        self.common.try_take().or_else(|| if bearer.role == Role::Admin { reserved() } else { None })
    }

    fn busy(&self) -> PermitRefused {
        let message = format!("{} {} are running already; try again shortly", self.common.most(), self.what);
        PermitRefused(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bearer(id: &str, role: Role) -> Bearer {
        Bearer { id: id.to_owned(), name: id.to_owned(), role }
    }

    #[tokio::test]
    async fn a_token_has_its_share_and_administrators_a_reserve() {
        let places = TokenPermits::new("queries", 3, 2);
        let (alice, bob, root) =
            (bearer("alice", Role::User), bearer("bob", Role::Support), bearer("root", Role::Admin));
        let held = [places.try_take(&alice).unwrap(), places.try_take(&alice).unwrap()];
        assert_eq!(
            places.try_take(&alice).unwrap_err().0,
            "2 queries of this token are running already; try again shortly"
        );
        let third = places.try_take(&bob).unwrap();
        assert_eq!(places.try_take(&bob).unwrap_err().0, "3 queries are running already; try again shortly");
        let admins = [places.try_take(&root).unwrap(), places.try_take(&root).unwrap()];
        assert!(places.try_take(&root).is_err());
        assert!(places.take(&bob, Duration::from_millis(1)).await.is_err());
        drop(third);
        assert!(places.take(&bob, Duration::ZERO).await.is_ok());
        drop((held, admins));
    }
}
