//! Following one node or one job: as it is, then each change, until there is nothing more to come.

use crate::jobs::{JobView, JobsOf};
use crate::nodes::NodeView;
use crate::standing::OpenStream;
use crate::{Call, Service};
use domain::Error;
use domain::node::NodeStatus;
use futures::future::BoxFuture;
use futures::stream::{BoxStream, StreamExt as _};
use std::sync::Arc;
use std::time::Duration;
use store::Follower;

/// What another server has written is found by looking.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// What is followed.
trait Followed: Clone + Send + Sync + 'static {
    fn look(service: &Service, id: String) -> BoxFuture<'_, Result<Self, Error>>;
    fn id(&self) -> String;
    fn is_news_after(&self, before: &Self) -> bool;
    /// Nothing comes after that.
    fn is_last(&self) -> bool;
}

impl Followed for NodeView {
    fn look(service: &Service, id: String) -> BoxFuture<'_, Result<Self, Error>> {
        Box::pin(async move { service.get_node(&id).await })
    }

    fn id(&self) -> String {
        self.node.id.to_string()
    }

    fn is_news_after(&self, before: &Self) -> bool {
        NodeView::is_news_after(self, before)
    }

    fn is_last(&self) -> bool {
        self.node.status == NodeStatus::Deleted
    }
}

impl Followed for JobView {
    fn look(service: &Service, id: String) -> BoxFuture<'_, Result<Self, Error>> {
        Box::pin(async move { service.get_job(&id, JobsOf::All).await })
    }

    fn id(&self) -> String {
        self.job.id.to_string()
    }

    fn is_news_after(&self, before: &Self) -> bool {
        JobView::is_news_after(self, before)
    }

    fn is_last(&self) -> bool {
        self.job.status.is_terminal()
    }
}

struct State<T> {
    service: Service,
    call: Arc<Call>,
    _place: OpenStream,
    follower: Follower,
    /// Not told yet.
    next: Option<T>,
    last: T,
}

impl<T: Followed> State<T> {
    async fn step(mut self) -> Result<Option<(T, Self)>, Error> {
        if let Some(first) = self.next.take() {
            return Ok(Some((first, self)));
        }
        if self.last.is_last() {
            return Ok(None);
        }
        loop {
            self.call.still_good(self.service.now())?;
            tokio::select! {
                biased;
                why = self.service.over(&self.call) => return Err(why),
                () = self.follower.grew() => {}
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
            let now = T::look(&self.service, self.last.id()).await?;
            if now.is_news_after(&self.last) {
                self.last = now.clone();
                return Ok(Some((now, self)));
            }
        }
    }
}

impl Service {
    fn follow<T: Followed>(
        &self,
        call: &Arc<Call>,
        place: OpenStream,
        follower: Follower,
        first: T,
    ) -> BoxStream<'static, Result<T, Error>> {
        let state = State {
            service: self.clone(),
            call: call.clone(),
            _place: place,
            follower,
            next: Some(first.clone()),
            last: first,
        };
        futures::stream::try_unfold(state, State::step).boxed()
    }

    pub async fn watch_node(
        &self,
        call: &Arc<Call>,
        id: &str,
    ) -> Result<BoxStream<'static, Result<NodeView, Error>>, Error> {
        let place = call.by.standing.open_stream()?;
        let known = self.get_node(id).await?;
        // followed first, then looked at again: what happens between is seen
        let follower = self.store().signals().node(&known.node.id);
        let first = self.get_node(known.node.id.as_str()).await?;
        Ok(self.follow(call, place, follower, first))
    }

    pub async fn watch_job(
        &self,
        call: &Arc<Call>,
        id: &str,
    ) -> Result<BoxStream<'static, Result<JobView, Error>>, Error> {
        let place = call.by.standing.open_stream()?;
        let known = self.get_job(id, JobsOf::All).await?;
        let follower = self.store().signals().job(&known.job.id);
        let first = self.get_job(known.job.id.as_str(), JobsOf::All).await?;
        Ok(self.follow(call, place, follower, first))
    }
}
