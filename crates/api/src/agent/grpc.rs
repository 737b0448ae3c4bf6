//! gRPC as far as agents speak it, by hand: messages are read without keeping room for more than is there, since ten
//! thousand streams stay open and say little. Everything else about the wire is HTTP/2's.

use bytes::{Buf as _, Bytes, BytesMut};
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use http_body::Frame;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use prost::Message;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::sync::mpsc;
use tonic::Status;
use tonic::body::Body;

const KIND: HeaderValue = HeaderValue::from_static("application/grpc");
/// Whether it is compressed, which nobody agreed to, and its length.
const HEAD: usize = 5;

pub(super) type Answer = http::Response<Body>;

/// Why there is no next message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unread {
    TooLarge,
    Malformed,
    /// The stream broke.
    Broken,
}

/// Messages as they come in, each within a bound.
pub(super) struct Incomings {
    body: Incoming,
    /// Of a message that is not whole yet; nothing between two.
    part: BytesMut,
    most: usize,
}

impl Incomings {
    pub fn new(body: Incoming, most: usize) -> Self {
        Self { body, part: BytesMut::new(), most }
    }

    /// The next one; `None`: there are no more. May be dropped and asked again.
    pub async fn next<T: Message + Default>(&mut self) -> Result<Option<T>, Unread> {
        loop {
            if let Some(whole) = cut(&mut self.part, self.most)? {
                if self.part.is_empty() {
                    // what was needed once is not kept for ever
                    self.part = BytesMut::new();
                }
                return T::decode(whole).map(Some).map_err(|_| Unread::Malformed);
            }
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.part.extend_from_slice(&data);
                    }
                }
                Some(Err(_)) => return Err(Unread::Broken),
                None if self.part.is_empty() => return Ok(None),
                None => return Err(Unread::Malformed),
            }
        }
    }
}

/// The first message, if it is whole.
fn cut(part: &mut BytesMut, most: usize) -> Result<Option<Bytes>, Unread> {
    let Some(head) = part.get(..HEAD) else { return Ok(None) };
    let length = head[1..].iter().fold(0_usize, |length, byte| length << 8 | usize::from(*byte));
    if head[0] != 0 {
        return Err(Unread::Malformed);
    }
    if length > most {
        return Err(Unread::TooLarge);
    }
    if part.len() < HEAD + length {
        return Ok(None);
    }
    part.advance(HEAD);
    Ok(Some(part.split_to(length).freeze()))
}

fn framed(message: &impl Message) -> Bytes {
    let message = message.encode_to_vec();
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    [&[0], length.to_be_bytes().as_slice(), &message].concat().into()
}

fn done() -> HeaderMap {
    HeaderMap::from_iter([(http::HeaderName::from_static("grpc-status"), HeaderValue::from_static("0"))])
}

fn answer(body: Body) -> Answer {
    let mut answer = http::Response::new(body);
    answer.headers_mut().insert(CONTENT_TYPE, KIND);
    answer
}

/// Messages as they go out, and that all is well at the end.
struct Outgoings<T> {
    words: mpsc::Receiver<Box<T>>,
    ended: bool,
}

impl<T: Message + 'static> http_body::Body for Outgoings<T> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        self.words.poll_recv(context).map(|word| {
            let frame = match word {
                Some(word) => Frame::data(framed(word.as_ref())),
                None => {
                    self.ended = true;
                    Frame::trailers(done())
                }
            };
            Some(Ok(frame))
        })
    }

    fn is_end_stream(&self) -> bool {
        self.ended
    }
}

/// An answer of many messages, until nobody sends any more.
pub(super) fn stream<T: Message + 'static>(words: mpsc::Receiver<Box<T>>) -> Answer {
    answer(Body::new(Outgoings { words, ended: false }))
}

/// An answer of one.
pub(super) fn one(message: &impl Message) -> Answer {
    let whole = http_body_util::Full::new(framed(message));
    answer(Body::new(whole.with_trailers(std::future::ready(Some(Ok(done()))))))
}

pub(super) fn refused(status: Status) -> Answer {
    status.into_http()
}

/// Whether it is gRPC at all.
pub(super) fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(KIND.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_cut_out_of_whatever_comes() {
        let one = framed(&"hello".to_owned());
        let both = [one.as_ref(), one.as_ref()].concat();
        for at in 0..both.len() {
            let mut part = BytesMut::from(&both[..at]);
            let mut found = 0;
            while cut(&mut part, 100).expect("fits").is_some() {
                found += 1;
            }
            assert_eq!(found, at / one.len(), "{at}");
            part.extend_from_slice(&both[at..]);
            while let Some(whole) = cut(&mut part, 100).expect("fits") {
                assert_eq!(String::decode(whole).as_deref(), Ok("hello"));
                found += 1;
            }
            assert_eq!((found, part.len()), (2, 0));
        }
        assert_eq!(cut(&mut BytesMut::from(one.as_ref()), one.len() - HEAD - 1), Err(Unread::TooLarge));
        assert_eq!(cut(&mut BytesMut::from(&[1, 0, 0, 0, 0][..]), 100), Err(Unread::Malformed));
        assert_eq!(cut(&mut BytesMut::from(&[0, 0xff, 0xff, 0xff, 0xff][..]), 100), Err(Unread::TooLarge));
    }
}
