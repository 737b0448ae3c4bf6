//! The three calls of agents.

use super::convert;
use super::line::Line;
use super::session;
use crate::error::to_status;
use domain::{Error, Reason, Secret};
use futures::Stream;
use proto::agent::v1 as pb;
use proto::agent::v1::agent_service_server::AgentService;
use service::Service;
use service::agents::Enrolment;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use tokio::sync::mpsc;
use tonic::{Request, Response, Status, Streaming};

#[derive(Clone)]
pub(super) struct Handler {
    service: Service,
}

/// Messages that wait for an agent to read them. One that does not is cut off.
const UNREAD_MAX: usize = 64;

impl Handler {
    pub fn new(service: Service) -> Self {
        Self { service }
    }
}

fn line_of<T>(request: &Request<T>) -> Result<Arc<Line>, Status> {
    let line = request.extensions().get::<Arc<Line>>().cloned();
    line.ok_or_else(|| to_status(Error::internal("a call without its connection")))
}

/// What an agent is told, as it is sent.
pub(super) struct Outgoing(mpsc::Receiver<Box<pb::ToAgent>>);

impl Stream for Outgoing {
    type Item = Result<pb::ToAgent, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context).map(|word| word.map(|word| Ok(*word)))
    }
}

#[tonic::async_trait]
impl AgentService for Handler {
    async fn enroll(&self, request: Request<pb::EnrollRequest>) -> Result<Response<pb::EnrollResponse>, Status> {
        line_of(&request)?.calls().map_err(to_status)?;
        let pb::EnrollRequest { token, csr_der, facts, agent_version } = request.into_inner();
        let asked = Enrolment {
            token: Secret::new(token),
            csr: csr_der,
            facts: convert::facts(facts.unwrap_or_default()),
            agent_version,
        };
        let enrolled = self.service.enrol_agent(asked).await.map_err(to_status)?;
        Ok(Response::new(pb::EnrollResponse {
            node_id: enrolled.node_id.into_text(),
            certificate: Some(convert::certificate(enrolled.certificate)),
            session: enrolled.session,
            epoch: enrolled.epoch,
        }))
    }

    async fn renew(&self, request: Request<pb::RenewRequest>) -> Result<Response<pb::RenewResponse>, Status> {
        let line = line_of(&request)?;
        line.calls().map_err(to_status)?;
        let peer = line.agent(&self.service, "AgentService/Renew").await.map_err(to_status)?;
        let renewed = self.service.renew_agent(peer, &request.into_inner().csr_der).await.map_err(to_status)?;
        Ok(Response::new(pb::RenewResponse { certificate: Some(convert::certificate(renewed)) }))
    }

    type ConnectStream = Outgoing;

    async fn connect(&self, request: Request<Streaming<pb::FromAgent>>) -> Result<Response<Outgoing>, Status> {
        const CONNECT: &str = "AgentService/Connect";
        let line = line_of(&request)?;
        self.service.takes_calls().map_err(to_status)?;
        let peer = line.agent(&self.service, CONNECT).await.map_err(to_status)?.clone();
        if let Err((why, error)) = self.service.is_in_its_time(&peer) {
            self.service.turned_away(why, CONNECT, Some(&peer.node_id), &error).await;
            return Err(to_status(error));
        }
        if line.streams.swap(true, Ordering::AcqRel) {
            return Err(to_status(Error::new(Reason::LimitReached, "this connection has a stream already")));
        }
        let (out, unread) = mpsc::channel(UNREAD_MAX);
        tokio::spawn(session::run(self.service.clone(), line, peer, request.into_inner(), out));
        Ok(Response::new(Outgoing(unread)))
    }
}
