//! The handshake by hand: packets as bytes, so that they can be wrong.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, recvmsg, sendmsg,
    socket_with,
};
use scalerpc_core::{Geometry, Region};
use scalerpc_driver::shm::{VERSION, guard::GUARD_BYTES};
use scalerpc_hugepage::{HugeMemory, PagePolicy};

pub const MAGIC: &[u8; 8] = b"ScaleRPC";
pub const HELLO: u32 = 1;
pub const REFUSAL: u32 = 2;
pub const OFFER: u32 = 3;
pub const REGION: u32 = 4;
pub const WELCOME: u32 = 5;
pub const BYE: u32 = 6;

pub fn packet(version: u32, kind: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(version.to_le_bytes());
    bytes.extend(kind.to_le_bytes());
    bytes.extend(body);
    bytes
}

pub fn hello(connections: u32) -> Vec<u8> {
    packet(
        VERSION,
        HELLO,
        &[connections.to_le_bytes(), [0; 4]].concat(),
    )
}

pub fn region(bytes: u64) -> Vec<u8> {
    packet(VERSION, REGION, &bytes.to_le_bytes())
}

pub fn bye() -> Vec<u8> {
    packet(VERSION, BYE, &[])
}

pub fn offer(geometry: &Geometry, connections: u32, bytes: u64) -> Vec<u8> {
    offer_of_shards(geometry, connections, (1, bytes), bytes)
}

/// An offer of so many shards at such a distance.
pub fn offer_of_shards(
    geometry: &Geometry,
    connections: u32,
    (shards, stride): (u32, u64),
    bytes: u64,
) -> Vec<u8> {
    let config = geometry.config();
    let numbers = [
        config.clients_max,
        config.group_size,
        config.window,
        config.request_max_bytes,
        config.response_max_bytes,
        0,
        connections,
        0,
        shards,
    ];
    let mut body: Vec<u8> = numbers
        .iter()
        .flat_map(|number| number.to_le_bytes())
        .collect();
    body.extend([stride, bytes].map(u64::to_le_bytes).concat());
    packet(VERSION, OFFER, &body)
}

pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

pub fn socket() -> OwnedFd {
    let socket = socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .unwrap();
    set_socket_timeout(&socket, Timeout::Recv, Some(super::PATIENCE)).unwrap();
    socket
}

pub fn dial(path: &Path) -> OwnedFd {
    let socket = socket();
    rustix::net::connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    socket
}

/// Sends a packet with descriptors; false if the peer is gone.
pub fn send(socket: &OwnedFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> bool {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
    }
    sendmsg(
        socket,
        &[IoSlice::new(bytes)],
        &mut control,
        SendFlags::NOSIGNAL,
    )
    .is_ok()
}

/// Receives a packet; empty at the end.
pub fn receive(socket: &OwnedFd) -> (Vec<u8>, Vec<OwnedFd>) {
    let mut buffer = vec![0; 1 << 16];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut buffer)],
        &mut control,
        flags,
    );
    let Ok(received) = received else {
        return (Vec::new(), Vec::new());
    };
    buffer.truncate(received.bytes);
    let fds = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds.collect::<Vec<_>>()),
        _ => None,
    });
    (buffer, fds.flatten().collect())
}

/// The reason and the detail of the refusal that comes next.
pub fn refusal(socket: &OwnedFd) -> (u32, u32) {
    let (bytes, fds) = receive(socket);
    assert!(fds.is_empty());
    assert!(bytes.len() >= 24, "a refusal, not {bytes:?}");
    assert_eq!((&bytes[..8], u32_at(&bytes, 12)), (&MAGIC[..], REFUSAL));
    (u32_at(&bytes, 16), u32_at(&bytes, 20))
}

/// Bytes of the memory of a client with so many connections.
pub fn client_bytes(geometry: &Geometry, connections: usize) -> usize {
    // Behind the guards is the line with the word that says that the client is asleep.
    connections * (geometry.client_exposed_bytes() + GUARD_BYTES) + 64
}

/// A link whose client does not use the library.
pub struct RawClient {
    pub socket: OwnedFd,
    pub memory: HugeMemory,
    pub seats: Vec<u32>,
    guards_at: usize,
}

impl RawClient {
    pub fn connect(path: &Path, geometry: &Geometry, connections: u32) -> Self {
        let socket = dial(path);
        assert!(send(&socket, &hello(connections), &[]));
        let (bytes, fds) = receive(&socket);
        assert_eq!((u32_at(&bytes, 12), fds.len()), (OFFER, 1));
        let bytes = client_bytes(geometry, connections as usize);
        let memory = HugeMemory::builder("raw", bytes)
            .policy(PagePolicy::Never)
            .build()
            .unwrap();
        assert!(send(&socket, &region(bytes as u64), &[memory.as_fd()]));
        let mut seats = Vec::new();
        while seats.len() < connections as usize {
            let (bytes, _) = receive(&socket);
            assert_eq!(u32_at(&bytes, 12), WELCOME);
            seats.extend(bytes[24..].chunks(16).map(|seat| u32_at(seat, 0)));
        }
        let guards_at = connections as usize * geometry.client_exposed_bytes();
        Self {
            socket,
            memory,
            seats,
            guards_at,
        }
    }

    /// Its memory, and the offset of the guard of a connection.
    pub fn guard(&self, connection: usize) -> (Region, usize) {
        // SAFETY: the memory is valid for its length until it is dropped with `self`, and the tests do not
        // use the region any longer; all access is through Regions.
        let region = unsafe { Region::new(self.memory.as_ptr(), self.memory.len()) };
        (region, self.guards_at + connection * GUARD_BYTES)
    }
}

/// The end of the stream comes, after whatever else does.
pub fn expect_end(socket: &OwnedFd) {
    expect_end_or(socket, || ());
}

/// As [`expect_end`], doing something now and then.
pub fn expect_end_or(socket: &OwnedFd, mut meanwhile: impl FnMut()) {
    super::wait_for("the end of the stream", || {
        meanwhile();
        let mut byte = [0; 1];
        match rustix::net::recv(socket, &mut byte, RecvFlags::DONTWAIT) {
            Ok((_, 0)) | Err(rustix::io::Errno::CONNRESET) => Some(()),
            Ok(_) | Err(rustix::io::Errno::AGAIN) => None,
            Err(errno) => panic!("no end of the stream: {errno}"),
        }
    });
}

/// A memfd of so many bytes with these seals.
pub fn memfd(bytes: usize, seals: SealFlags) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create("hostile", flags).unwrap();
    rustix::fs::ftruncate(&fd, bytes as u64).unwrap();
    rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
    fd
}
