//! The stream beside the queue pairs: it sets them up, and its end says that the peer's process is gone.

use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use rustix::net::sockopt;

use super::packet::{Bad, Inbox, Packet};
use super::setup::SetupError;

/// A silent stream is asked after so long, then so often, and given up after so many questions.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(5);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
const KEEPALIVE_COUNT: u32 = 3;
/// What is sent must be acknowledged within this time.
const USER_TIMEOUT_MS: u32 = 10_000;

/// Packets are small and urgent, and a peer whose machine is gone is noticed.
pub(super) fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(stream, KEEPALIVE_COUNT)?;
    sockopt::set_tcp_user_timeout(stream, USER_TIMEOUT_MS)?;
    Ok(())
}

/// The addresses that a text or a pair stands for; at least one.
pub(super) fn resolve(
    address: impl ToSocketAddrs + std::fmt::Debug,
) -> Result<Vec<SocketAddr>, SetupError> {
    let text = format!("{address:?}");
    let found = address
        .to_socket_addrs()
        .map(Iterator::collect::<Vec<_>>)
        .and_then(|found| match found.len() {
            0 => Err(io::Error::new(io::ErrorKind::NotFound, "no address")),
            _ => Ok(found),
        });
    found.map_err(|source| SetupError::BadAddress {
        address: text,
        source,
    })
}

/// What came out of a stream.
#[derive(Debug)]
pub(super) enum Incoming {
    /// No whole packet yet.
    Nothing,
    /// The peer has closed it, or it is broken.
    End,
    /// No packet.
    Bad(Bad),
    Packet(Packet, u64),
}

/// Takes a packet from a stream that does not block.
pub(super) fn receive(mut stream: &TcpStream, inbox: &mut Inbox) -> Incoming {
    loop {
        match inbox.take() {
            Ok(Some((packet, attempt))) => return Incoming::Packet(packet, attempt),
            Ok(None) => {}
            Err(bad) => return Incoming::Bad(bad),
        }
        match io::Read::read(&mut stream, inbox.room()) {
            Ok(0) => return Incoming::End,
            Ok(count) => inbox.filled(count),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Incoming::Nothing,
            Err(_) => return Incoming::End,
        }
    }
}

/// Sends as much as goes at once; returns how much that was.
pub(super) fn send(mut stream: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
    let mut sent = 0;
    while let Some(rest) = bytes.get(sent..).filter(|rest| !rest.is_empty()) {
        match io::Write::write(&mut stream, rest) {
            Ok(count) => sent += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    Ok(sent)
}
