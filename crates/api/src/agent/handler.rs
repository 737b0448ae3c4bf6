//! The three calls of agents.

use super::grpc::{self, Answer, Incomings, Unread};
use super::line::Line;
use super::{convert, session};
use crate::error::to_status;
use domain::{Error, Reason, Secret};
use hyper::body::Incoming;
use prost::Message;
use proto::agent::v1 as pb;
use service::Service;
use service::agents::Enrolment;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::mpsc;
use tonic::Status;

const ENROLL: &str = "/millwright.agent.v1.AgentService/Enroll";
const RENEW: &str = "/millwright.agent.v1.AgentService/Renew";
const CONNECT: &str = "/millwright.agent.v1.AgentService/Connect";
/// The largest message of a stream: an inventory.
const INVENTORY_MAX: usize = 1024 * 1024;
/// Of everything else.
pub(super) const PLAIN_MAX: usize = 256 * 1024;
/// Messages that wait for an agent to read them. One that does not is cut off.
const UNREAD_MAX: usize = 64;

/// One call, by its path.
pub(super) async fn call(service: Service, line: Arc<Line>, request: http::Request<Incoming>) -> Answer {
    let path = request.uri().path();
    let answered = match path {
        _ if !grpc::is_grpc(request.headers()) => Err(Status::unimplemented("agents speak gRPC here")),
        ENROLL => enroll(&service, &line, request.into_body()).await,
        RENEW => renew(&service, &line, request.into_body()).await,
        CONNECT => connect(service, line, request.into_body()).await,
        _ => Err(Status::unimplemented("agents enrol, renew and connect here, and nothing else")),
    };
    answered.unwrap_or_else(grpc::refused)
}

/// The one message of a call.
async fn only<T: Message + Default>(body: Incoming) -> Result<T, Status> {
    match Incomings::new(body, PLAIN_MAX).next().await {
        Ok(Some(message)) => Ok(message),
        Ok(None) | Err(Unread::Malformed) => Err(Status::invalid_argument("the message does not read")),
        Err(Unread::TooLarge) => Err(Status::resource_exhausted(format!("a message has at most {PLAIN_MAX} bytes"))),
        Err(Unread::Broken) => Err(Status::cancelled("the message did not come")),
    }
}

async fn enroll(service: &Service, line: &Line, body: Incoming) -> Result<Answer, Status> {
    line.calls().map_err(to_status)?;
    let pb::EnrollRequest { token, csr_der, facts, agent_version } = only(body).await?;
    let asked = Enrolment {
        token: Secret::new(token),
        csr: csr_der,
        facts: convert::facts(facts.unwrap_or_default()),
        agent_version,
    };
    let enrolled = service.enrol_agent(asked).await.map_err(to_status)?;
    Ok(grpc::one(&pb::EnrollResponse {
        node_id: enrolled.node_id.into_text(),
        certificate: Some(convert::certificate(enrolled.certificate)),
        session: enrolled.session,
        epoch: enrolled.epoch,
    }))
}

async fn renew(service: &Service, line: &Line, body: Incoming) -> Result<Answer, Status> {
    line.calls().map_err(to_status)?;
    let peer = line.agent(service, "AgentService/Renew").await.map_err(to_status)?;
    let pb::RenewRequest { csr_der } = only(body).await?;
    let renewed = service.renew_agent(peer, &csr_der).await.map_err(to_status)?;
    Ok(grpc::one(&pb::RenewResponse { certificate: Some(convert::certificate(renewed)) }))
}

async fn connect(service: Service, line: Arc<Line>, body: Incoming) -> Result<Answer, Status> {
    const NAME: &str = "AgentService/Connect";
    service.takes_calls().map_err(to_status)?;
    let peer = line.agent(&service, NAME).await.map_err(to_status)?.clone();
    if let Err((why, error)) = service.is_in_its_time(&peer) {
        service.turned_away(why, NAME, Some(&peer.node_id), &error).await;
        return Err(to_status(error));
    }
    if line.streams.swap(true, Ordering::AcqRel) {
        return Err(to_status(Error::new(Reason::LimitReached, "this connection has a stream already")));
    }
    let (out, unread) = mpsc::channel(UNREAD_MAX);
    tokio::spawn(session::run(service, line, peer, Incomings::new(body, INVENTORY_MAX), out));
    Ok(grpc::stream(unread))
}
