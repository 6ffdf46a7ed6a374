//! Connections: accepted, and with TLS shaken hands with, each on its own, so that a slow or broken peer holds up nobody. What
//! is known of the peer goes with the connection.

use std::{
    convert::Infallible,
    io::{self, IoSlice},
    net::SocketAddr,
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
/// Handshakes at a time; further connections wait in the kernel's queue.
const MAX_HANDSHAKES: usize = 512;
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
        let (tls, sender, failures) = (tls.clone(), sender.clone(), Arc::clone(&failures));
        tokio::spawn(async move {
            let connection = match tls {
                None => Ok(Connection {
                    stream: Stream::Plain(stream),
                    info: ConnectionInfo { peer: Some(peer), uris: None },
                }),
                Some(tls) => shake_hands(&tls, stream, peer).await,
            };
            drop(place);
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
        if stream.peek(&mut first).await? == 1 && first[0] == PLAIN_HTTP2 {
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
