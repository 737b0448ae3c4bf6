//! An image's bytes on their way to one reader. What is in the page cache, which is nearly everything where many read
//! the same, is copied where the connection stands: handing each piece to another thread would cost more than the copy.
//! What is not is read by a few threads that may wait for the disk.
//!
//! All readers together hold a bounded amount of memory: the more of it is held, by readers who have not taken their
//! piece yet, the smaller is the next piece that anybody gets.

use super::StoreError;
use super::store::Image;
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use rustix::io::{Errno, ReadWriteFlags};
use std::future::Future;
use std::io::{self, IoSliceMut};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// For the pieces of all readers together. When it is used up, each more gets one of the smallest.
const MEMORY: usize = 8 << 20;
const PIECE_MIN: usize = 16 << 10;
const PIECE_MAX: usize = 256 << 10;
/// A piece is this part of the memory that is left, or less: many get one before the smallest must do.
const SHARE: usize = 16;
/// Reads that wait for the disk at the same time.
const DISK_READS: usize = 16;

/// What all streams share.
#[derive(Debug)]
pub(super) struct Streams {
    places: Arc<Semaphore>,
    places_max: usize,
    disk: Arc<Semaphore>,
    buffers: Arc<Buffers>,
}

impl Streams {
    pub fn new(places_max: usize) -> Self {
        let places = Arc::new(Semaphore::new(places_max));
        Self { places, places_max, disk: Arc::new(Semaphore::new(DISK_READS)), buffers: Arc::default() }
    }

    /// A place for one more reader; `None`: there are as many as may be.
    pub fn place(self: &Arc<Self>) -> Option<Place> {
        let permit = self.places.clone().try_acquire_owned().ok()?;
        Some(Place { streams: self.clone(), _permit: permit })
    }

    pub fn open(&self) -> usize {
        self.places_max - self.places.available_permits()
    }
}

pub(super) struct Place {
    streams: Arc<Streams>,
    _permit: OwnedSemaphorePermit,
}

#[derive(Debug, Default)]
struct Buffers(Mutex<Held>);

/// The buffers there are. What is lent and what is spare together is no more than [`MEMORY`], unless that much is lent.
#[derive(Debug, Default)]
struct Held {
    lent: usize,
    /// The last one that was given back is at the end: it is still in the processor's cache.
    spare: Vec<Box<[u8]>>,
    spare_bytes: usize,
}

impl Held {
    /// How large the next one is.
    fn next(&self) -> usize {
        let share = MEMORY.saturating_sub(self.lent) / SHARE;
        share.checked_ilog2().map_or(0, |log| 1 << log).clamp(PIECE_MIN, PIECE_MAX)
    }

    fn reuse(&mut self, size: usize) -> Option<Box<[u8]>> {
        let at = self.spare.iter().rposition(|one| one.len() == size)?;
        self.spare_bytes -= size;
        Some(self.spare.remove(at))
    }
}

impl Buffers {
    fn held(&self) -> MutexGuard<'_, Held> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(self: &Arc<Self>) -> Buffer {
        let mut held = self.held();
        let size = held.next();
        let spare = held.reuse(size);
        held.lent += size;
        while held.lent + held.spare_bytes > MEMORY && !held.spare.is_empty() {
            held.spare_bytes -= held.spare.remove(0).len();
        }
        drop(held);
        let bytes = spare.unwrap_or_else(|| vec![0; size].into_boxed_slice());
        Buffer { bytes, filled: 0, home: self.clone() }
    }

    fn give_back(&self, bytes: Box<[u8]>) {
        let mut held = self.held();
        held.lent -= bytes.len();
        if held.lent + held.spare_bytes + bytes.len() <= MEMORY {
            held.spare_bytes += bytes.len();
            held.spare.push(bytes);
        }
    }
}

/// Goes back when the last who reads from it is done.
struct Buffer {
    bytes: Box<[u8]>,
    filled: usize,
    home: Arc<Buffers>,
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.filled]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.home.give_back(std::mem::take(&mut self.bytes));
    }
}

type Reading = Pin<Box<dyn Future<Output = Result<Buffer, StoreError>> + Send>>;

/// Some bytes of an image, as the body of an answer.
pub(super) struct Stream {
    image: Arc<Image>,
    at: u64,
    end: u64,
    place: Place,
    /// Under way on a thread that may wait.
    reading: Option<Reading>,
    /// Whether the file system can say that it would have to wait.
    can_tell: bool,
}

impl Stream {
    /// From and including `at`, up to `end`.
    pub fn new(image: Image, at: u64, end: u64, place: Place) -> Self {
        Self { image: Arc::new(image), at, end, place, reading: None, can_tell: true }
    }

    /// `None`: not without waiting.
    fn read_at_once(&mut self, buffer: &mut Buffer, wanted: usize) -> io::Result<Option<usize>> {
        let mut into = [IoSliceMut::new(&mut buffer.bytes[..wanted])];
        match rustix::io::preadv2(self.image.file(), &mut into, self.at, ReadWriteFlags::NOWAIT) {
            Ok(read) => Ok(Some(read)),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                self.can_tell = false;
                Ok(None)
            }
            Err(e) => Err(e.into()),
        }
    }

    fn read_from_disk(&self, mut buffer: Buffer, wanted: usize) -> Reading {
        let (image, at, disk) = (self.image.clone(), self.at, self.place.streams.disk.clone());
        Box::pin(async move {
            let _turn = disk.acquire().await;
            let read = tokio::task::spawn_blocking(move || {
                buffer.filled = image.read_at(&mut buffer.bytes[..wanted], at)?;
                Ok(buffer)
            });
            let gone = |e| StoreError::Disk { doing: "reading an image".to_owned(), reason: io::Error::other(e) };
            read.await.map_err(gone)?
        })
    }

    fn next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Buffer, StoreError>> {
        if let Some(reading) = &mut self.reading {
            let read = ready!(reading.as_mut().poll(cx));
            self.reading = None;
            return Poll::Ready(read);
        }
        let mut buffer = self.place.streams.buffers.take();
        let wanted = usize::try_from(self.end - self.at).unwrap_or(usize::MAX).min(buffer.bytes.len());
        if self.can_tell {
            match self.read_at_once(&mut buffer, wanted) {
                Ok(Some(read)) => {
                    buffer.filled = read;
                    return Poll::Ready(Ok(buffer));
                }
                Ok(None) => {}
                Err(reason) => {
                    let doing = format!("reading the image {}", self.image.path().display());
                    return Poll::Ready(Err(StoreError::Disk { doing, reason }));
                }
            }
        }
        let reading = self.reading.insert(self.read_from_disk(buffer, wanted));
        let read = ready!(reading.as_mut().poll(cx));
        self.reading = None;
        Poll::Ready(read)
    }
}

impl Body for Stream {
    type Data = Bytes;
    type Error = StoreError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, StoreError>>> {
        if self.at == self.end {
            return Poll::Ready(None);
        }
        let read = ready!(self.next(cx)).and_then(|buffer| match buffer.filled {
            0 => {
                let doing = format!("reading the image {}", self.image.path().display());
                let reason = io::Error::new(io::ErrorKind::UnexpectedEof, "it has become shorter: verify it");
                Err(StoreError::Disk { doing, reason })
            }
            _ => Ok(buffer),
        });
        Poll::Ready(Some(match read {
            Ok(buffer) => {
                self.at += buffer.filled as u64;
                Ok(Frame::data(Bytes::from_owner(buffer)))
            }
            Err(e) => {
                // the reader only sees that its connection breaks
                tracing::error!(error = %e, "an image could not be read to its end");
                Err(e)
            }
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.at == self.end
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.end - self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::images::Store;
    use http_body_util::BodyExt as _;
    use rustix::fs::Advice;

    fn stored(bytes: &[u8]) -> (tempfile::TempDir, Store, Image) {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::open(folder.path(), u64::MAX).expect("opened");
        let (digest, _) = store.add(bytes, None).expect("added");
        let image = store.image(&digest).expect("opened").expect("is there");
        (folder, store, image)
    }

    fn numbered(length: usize) -> Vec<u8> {
        (0..length).map(|n| (n % 251) as u8).collect()
    }

    #[test]
    fn pieces_shrink_so_that_all_readers_fit() {
        let buffers = Arc::new(Buffers::default());
        let (mut lent, mut last) = (Vec::new(), PIECE_MAX);
        for readers in 1..=2000 {
            lent.push(buffers.take());
            let size = lent[readers - 1].bytes.len();
            assert!(size <= last && size.is_power_of_two());
            let all: usize = lent.iter().map(|buffer| buffer.bytes.len()).sum();
            assert!(all <= MEMORY + readers * PIECE_MIN, "{readers} hold {all}");
            last = size;
        }
        assert_eq!(last, PIECE_MIN);
        // some have to be small before much is used
        assert!(lent.iter().filter(|buffer| buffer.bytes.len() == PIECE_MAX).count() >= SHARE);
        drop(lent);
        assert_eq!(buffers.take().bytes.len(), PIECE_MAX);
    }

    #[test]
    fn as_many_read_as_there_are_places() {
        let streams = Arc::new(Streams::new(2));
        let two = [streams.place(), streams.place()];
        assert!(two.iter().all(Option::is_some) && streams.place().is_none());
        assert_eq!(streams.open(), 2);
        drop(two);
        assert!(streams.place().is_some());
    }

    #[tokio::test]
    async fn what_is_not_in_memory_is_read_from_disk() {
        let bytes = numbered(3 * PIECE_MAX + 17);
        let (_folder, _store, image) = stored(&bytes);
        rustix::fs::fadvise(image.file(), 0, None, Advice::DontNeed).expect("advised");
        let streams = Arc::new(Streams::new(1));
        let stream = Stream::new(image, 5, bytes.len() as u64, streams.place().expect("a place"));
        let got = stream.collect().await.expect("read").to_bytes();
        assert!(got[..] == bytes[5..]);
    }

    #[tokio::test]
    async fn a_file_system_that_cannot_tell_is_read_by_threads() {
        let bytes = numbered(PIECE_MAX + 1);
        let (_folder, _store, image) = stored(&bytes);
        let streams = Arc::new(Streams::new(1));
        let mut stream = Stream::new(image, 0, bytes.len() as u64, streams.place().expect("a place"));
        stream.can_tell = false;
        assert!(stream.collect().await.expect("read").to_bytes()[..] == bytes);
        assert_eq!(streams.open(), 0);
    }

    #[tokio::test]
    async fn an_image_that_becomes_shorter_is_an_error_and_not_an_end() {
        let (folder, _store, image) = stored(&numbered(100));
        let file = folder.path().join("sha256").join(image.digest().to_string());
        let mut permissions = std::fs::metadata(&file).expect("is there").permissions();
        #[allow(clippy::permissions_set_readonly_false, reason = "a test's own file")]
        permissions.set_readonly(false);
        std::fs::set_permissions(&file, permissions).expect("writable");
        std::fs::File::options().write(true).open(&file).expect("opened").set_len(10).expect("cut");
        let streams = Arc::new(Streams::new(1));
        let error = Stream::new(image, 0, 100, streams.place().expect("a place")).collect().await.err();
        assert!(error.expect("an error").to_string().contains("become shorter"));
    }

    #[test]
    fn buffers_are_used_again_and_what_is_kept_is_bounded() {
        let buffers = Arc::new(Buffers::default());
        let all = || {
            let held = buffers.held();
            let spare: usize = held.spare.iter().map(|one| one.len()).sum();
            assert_eq!(spare, held.spare_bytes);
            (held.lent, spare)
        };
        let first = buffers.take();
        let at = first.bytes.as_ptr();
        drop(first);
        assert_eq!(all(), (0, PIECE_MAX));
        let again = buffers.take();
        assert_eq!((again.bytes.as_ptr(), all()), (at, (PIECE_MAX, 0)));
        drop(again);
        let many: Vec<Buffer> = (0..1000).map(|_| buffers.take()).collect();
        assert!(all().0 > MEMORY && all().1 == 0);
        drop(many);
        assert!(all().0 == 0 && all().1 <= MEMORY);
        // small ones that are spare make room for large ones that are needed
        let large: Vec<Buffer> = (0..20).map(|_| buffers.take()).collect();
        assert!(all().0 + all().1 <= MEMORY && large[0].bytes.len() == PIECE_MAX);
    }
}
