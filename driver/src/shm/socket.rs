//! Packets and file descriptors over a Unix socket; nothing here blocks.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg,
    sendmsg, socket_with,
};

/// A new close-on-exec socket that keeps the borders of packets.
pub(super) fn open() -> Result<OwnedFd, Errno> {
    socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
}

/// What came out of a socket.
#[derive(Debug)]
pub(super) enum Incoming {
    /// Nothing yet.
    Nothing,
    /// The peer has closed its end (or sent an empty packet, which no version does).
    End,
    /// A packet came with a descriptor for which this process has no room.
    NoRoom,
    /// A packet.
    Packet {
        /// Its length, no more than the buffer's.
        len: usize,
        /// The descriptor that came along.
        fd: Option<OwnedFd>,
        /// False if the packet was longer than the buffer, or brought more than one descriptor. Those
        /// have been closed.
        whole: bool,
    },
}

/// Takes a packet. Descriptors that come along are close-on-exec, and closed if nobody wants them.
pub(super) fn receive(socket: impl AsFd, buffer: &mut [u8]) -> Incoming {
    // Room for two, so that a second one is seen; the kernel drops what does not fit.
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = loop {
        match recvmsg(
            socket.as_fd(),
            &mut [IoSliceMut::new(buffer)],
            &mut control,
            flags,
        ) {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Incoming::Nothing,
            Err(_) => return Incoming::End,
            Ok(received) => break received,
        }
    };
    let mut fd = None;
    let mut count = 0;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            for received in fds {
                count += 1;
                fd.get_or_insert(received);
            }
        }
    }
    let len = received.bytes.min(buffer.len());
    if len == 0 {
        return Incoming::End;
    }
    if count == 0 && received.flags.contains(ReturnFlags::CTRUNC) {
        return Incoming::NoRoom;
    }
    let cut = received
        .flags
        .intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
    Incoming::Packet {
        len,
        fd,
        whole: !cut && count <= 1,
    }
}

/// Sends a packet, with a descriptor if there is one.
///
/// # Errors
///
/// `Errno::AGAIN` if it does not fit now; anything else means that the peer is gone.
pub(super) fn send(
    socket: impl AsFd,
    packet: &[u8],
    fd: Option<BorrowedFd<'_>>,
) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds: &[BorrowedFd<'_>] = fd.as_slice();
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::NOMEM);
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    loop {
        match sendmsg(socket.as_fd(), &[IoSlice::new(packet)], &mut control, flags) {
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
            Ok(_) => return Ok(()),
        }
    }
}
