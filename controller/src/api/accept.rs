//! Connections: accepted, and with TLS shaken hands with, each on its own, so that a slow or broken peer holds up nobody. What
//! is known of the peer goes with the connection.

use std::{
    collections::HashMap,
    convert::Infallible,
    io::{self, IoSlice},
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{Semaphore, mpsc},
};
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Connected;
use weir_common::{
    errors::chain,
    tls::{SPEAKS_TLS, ServerTls, Side, explain, uris},
};

use crate::access::ConnectionInfo;

/// Longest time for a handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// A client of TLS and one of HTTP/2 both speak first: who is silent for so long gives its place to others.
const FIRST_BYTE: Duration = Duration::from_secs(3);
/// Handshakes at a time; further connections wait in the kernel's queue.
const MAX_HANDSHAKES: usize = 512;
/// Handshakes at a time with one address, so that no single one takes all places. Generous, since many agents may come from
/// behind one address; who is turned away tries again.
const MAX_HANDSHAKES_OF_ONE: usize = MAX_HANDSHAKES / 2;
/// Connections that wait to be served.
const QUEUE: usize = 64;
/// After an error of accept, which mostly means that there are too many open files.
const PAUSE: Duration = Duration::from_millis(100);
/// Failed handshakes are logged at most this often: anybody who reaches the port can make them.
const LOG_PERIOD: Duration = Duration::from_secs(1);

/// The first byte of a client's preface in HTTP/2 without TLS.
const PLAIN_HTTP2: u8 = b'P';

enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// An accepted connection.
pub(super) struct Connection {
    stream: Stream,
    info: ConnectionInfo,
}

impl Connected for Connection {
    type ConnectInfo = ConnectionInfo;

    fn connect_info(&self) -> ConnectionInfo {
        self.info.clone()
    }
}

/// Accepts on the listener until the stream is dropped.
pub(super) fn connections(
    listener: TcpListener,
    tls: Option<Arc<ServerTls>>,
) -> ReceiverStream<Result<Connection, Infallible>> {
    let (sender, receiver) = mpsc::channel(QUEUE);
    tokio::spawn(accept(listener, tls, sender));
    ReceiverStream::new(receiver)
}

type Sender = mpsc::Sender<Result<Connection, Infallible>>;

async fn accept(listener: TcpListener, tls: Option<Arc<ServerTls>>, sender: Sender) {
    let places = Arc::new(Semaphore::new(MAX_HANDSHAKES));
    let failures = Arc::new(Failures::default());
    let shaking = Arc::new(Shaking::default());
    loop {
        let accepting = async {
            // The semaphore is never closed; without a place this would only be less patient.
            let place = Arc::clone(&places).acquire_owned().await;
            (place, listener.accept().await)
        };
        let (place, accepted) = tokio::select! {
            accepted = accepting => accepted,
            () = sender.closed() => return,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "a connection cannot be accepted");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        // Without it answers are only later.
        let _slower = stream.set_nodelay(true);
        let Some(counted) = shaking.begin(peer.ip().to_canonical()) else {
            failures.log(peer, "too many handshakes of this address are under way");
            continue;
        };
        let (tls, sender, failures) = (tls.clone(), sender.clone(), Arc::clone(&failures));
        tokio::spawn(async move {
            let connection = match tls {
                None => Ok(Connection {
                    stream: Stream::Plain(stream),
                    info: ConnectionInfo { peer: Some(peer), uris: None },
                }),
                Some(tls) => shake_hands(&tls, stream, peer).await,
            };
            drop((place, counted));
            match connection {
                // The server has ended where nobody takes it.
                Ok(connection) => drop(sender.send(Ok(connection)).await),
                Err(why) => failures.log(peer, &why),
            }
        });
    }
}

async fn shake_hands(tls: &ServerTls, stream: TcpStream, peer: SocketAddr) -> Result<Connection, String> {
    let shaking = async {
        let mut first = [0];
        let spoke = tokio::time::timeout(FIRST_BYTE, stream.peek(&mut first)).await;
        let silent = || io::Error::new(io::ErrorKind::TimedOut, "the client said nothing");
        if spoke.map_err(|_| silent())?? == 1 && first[0] == PLAIN_HTTP2 {
            return Ok(Err(stream));
        }
        tls.acceptor().accept(stream).await.map(Ok)
    };
    let stream = match tokio::time::timeout(HANDSHAKE, shaking).await {
        Ok(Ok(Ok(stream))) => stream,
        Ok(Ok(Err(plain))) => {
            // A peer that does not take the answer has lost nothing but a reason.
            let _unheard = tokio::time::timeout(PAUSE * 10, ask_for_tls(plain)).await;
            return Err("the client speaks plain text: it has to say https://".to_owned());
        }
        Ok(Err(error)) => return Err(explain(&error, Side::Server).unwrap_or_else(|| chain(&error))),
        Err(_) => return Err(format!("it took longer than {} s", HANDSHAKE.as_secs())),
    };
    let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
    let uris = certificate.map(uris).transpose().map_err(|error| error.to_string())?;
    let info = ConnectionInfo { peer: Some(peer), uris: uris.map(Arc::from) };
    Ok(Connection { stream: Stream::Tls(Box::new(stream)), info })
}

/// Tells a client of HTTP/2 without TLS why it is not served, in its own words, and reads what it still sends: closing with
/// unread bytes would reset the connection, and the reason with it.
async fn ask_for_tls(mut stream: TcpStream) -> io::Result<()> {
    let reason = SPEAKS_TLS.as_bytes();
    let length = u8::try_from(8 + reason.len()).unwrap_or(8);
    // Empty SETTINGS, then GOAWAY of stream 0: last stream 0, INADEQUATE_SECURITY.
    let mut frames = vec![0, 0, 0, 4, 0, 0, 0, 0, 0];
    frames.extend([0, 0, length, 7, 0, 0, 0, 0, 0]);
    frames.extend([0, 0, 0, 0, 0, 0, 0, 0xc]);
    frames.extend(reason);
    stream.write_all(&frames).await?;
    stream.shutdown().await?;
    let mut unread = [0; 4096];
    while stream.read(&mut unread).await? > 0 {}
    Ok(())
}

/// Handshakes under way, by address.
#[derive(Default)]
struct Shaking(Mutex<HashMap<IpAddr, usize>>);

/// One handshake under way, until it is dropped.
struct Counted(Arc<Shaking>, IpAddr);

impl Shaking {
    /// Counts one more; `None` where the address has too many.
    fn begin(self: &Arc<Self>, address: IpAddr) -> Option<Counted> {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(address).or_default();
        if *count >= MAX_HANDSHAKES_OF_ONE {
            return None;
        }
        *count += 1;
        Some(Counted(Arc::clone(self), address))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut counts = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.1) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.1);
            }
        }
    }
}

/// Logs failed handshakes, with a count of those that were left out.
#[derive(Default)]
struct Failures(Mutex<(Option<Instant>, u64)>);

impl Failures {
    fn log(&self, peer: SocketAddr, why: &str) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (last, left_out) = &mut *state;
        if last.is_some_and(|last| last.elapsed() < LOG_PERIOD) {
            *left_out += 1;
            return;
        }
        tracing::warn!(%peer, not_logged_before = *left_out, "a TLS handshake failed: {why}");
        (*last, *left_out) = (Some(Instant::now()), 0);
    }
}

impl AsyncRead for Connection {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            Stream::Plain(stream) => Pin::new(stream).poll_read(cx, buffer),
            Stream::Tls(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().stream {
            Stream::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Stream::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().stream {
            Stream::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
            Stream::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Stream::Plain(stream) => stream.is_write_vectored(),
            Stream::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            Stream::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Stream::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            Stream::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_leaves_places_to_others() {
        let shaking = Arc::new(Shaking::default());
        let (one, other): (IpAddr, IpAddr) = ("192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap());
        let mut under_way: Vec<Counted> =
            (0..MAX_HANDSHAKES_OF_ONE).map(|_| shaking.begin(one).expect("a place")).collect();
        assert!(shaking.begin(one).is_none());
        assert!(shaking.begin(other).is_some());
        under_way.pop();
        assert!(shaking.begin(one).is_some());
        drop(under_way);
        assert!(shaking.0.lock().unwrap().is_empty(), "addresses are not remembered");
    }

    #[tokio::test]
    async fn silent_connections_hold_nobody_up_for_long() {
        let directory = tempfile::tempdir().unwrap();
        let pair = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let (certificate, key) = (directory.path().join("c"), directory.path().join("k"));
        std::fs::write(&certificate, pair.cert.pem()).unwrap();
        std::fs::write(&key, pair.signing_key.serialize_pem()).unwrap();
        let tls = ServerTls::load(weir_common::tls::ServerFiles { certificate, key, client_ca: None }).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let accepted = tokio::spawn(async move {
            let (stream, peer) = listener.accept().await.unwrap();
            let began = Instant::now();
            let failed = shake_hands(&tls, stream, peer).await.err().unwrap();
            (failed, began.elapsed())
        });
        let _silent = TcpStream::connect(address).await.unwrap();
        let (failed, took) = accepted.await.unwrap();
        assert!(failed.contains("said nothing") && took < HANDSHAKE, "{failed} after {took:?}");
    }
}
