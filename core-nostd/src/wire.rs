//! What travels: the trailer of a message and the endpoint entry.
//!
//! A message ends where its block ends. The last word written is `valid`, so that a party that sees the
//! value it waits for may read the rest. It is the number of the call (or of the ring position) xor the
//! owner: what another owner left in the block, be it with the same number, does not vouch for a message
//! that has landed in part. All words are 64-bit little-endian.
//!
//! ```text
//!            | payload, from a line boundary | pad | extension (32 B, if EXT) | trailer (32 B) |
//!  trailer   | owner u64 | length u32, tag u16, flags u16 | crc u32, slot u32 | valid u64 |
//!  extension | epoch u64 | consumed u64 | zone u32, pool u32 | 0 |         of a response
//!            | budget in ns u64 | 0 | 0 | 0 |                              of a request
//!  entry     | quiet epoch | owner | first call | staged at | stride u32, count u32 | crc u32, 0 | 0 | number |
//! ```
//!
//! A request has an extension only if its call has a budget, so that a small one without is one line.

use crc::{CRC_32_ISCSI, Crc, Digest};

use crate::memory::Memory;
use crate::mutant::{self, Bug};

/// Bytes of a cache line; messages are whole lines.
pub const LINE: usize = 64;
/// Bytes of the trailer of a message. With a payload of up to 32 bytes a message is one line.
pub const TRAILER_BYTES: usize = 32;
/// Bytes of an extension.
pub const EXT_BYTES: usize = 32;

/// The message carries an extension.
pub const FLAG_EXT: u16 = 1 << 0;
/// The extension tells a client where to write its requests: it is in state Process now.
pub const FLAG_ACTIVATE: u16 = 1 << 1;
/// The extension carries a context switch event: the client's tenancy is over.
pub const FLAG_SWITCH: u16 = 1 << 2;
/// The message answers no call.
pub const FLAG_CONTROL: u16 = 1 << 3;
/// The request takes the place of a call that is not to run. It has no payload, method or extension.
pub const FLAG_CANCELLED: u16 = 1 << 4;
const FLAGS_KNOWN: u16 = FLAG_EXT | FLAG_ACTIVATE | FLAG_SWITCH | FLAG_CONTROL | FLAG_CANCELLED;

/// CRC-32C (Castagnoli), which RDMA hardware uses too.
static CRC_32C: Crc<u32> = Crc::<u32>::new(&CRC_32_ISCSI);

/// Whether a poller may trust `valid` alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Placement {
    /// The receiving side places the bytes of one WRITE in increasing address order
    /// (`ibv_query_qp_data_in_order`), as shared memory does.
    #[default]
    InOrder,
    /// Bytes may be placed in any order: each message carries a CRC-32C, and counts as arrived only
    /// when it matches.
    AnyOrder,
}

/// The outcome of a call, as it travels in a response's tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Status(pub u16);

impl Status {
    /// The handler answered.
    pub const OK: Self = Self(0);
    /// No handler for the method.
    pub const UNKNOWN_METHOD: Self = Self(1);
    /// The handler's answer does not fit a response.
    pub const RESPONSE_TOO_LARGE: Self = Self(2);
    /// The server cannot take the call now. It has not run, and may be made again. A handler that says so
    /// vouches for that.
    pub const BUSY: Self = Self(3);
    /// The handler did not come to an end.
    pub const HANDLER_FAILED: Self = Self(4);
    /// The call's budget was used up before it was its turn. It has not run.
    pub const DEADLINE_EXCEEDED: Self = Self(5);
    /// The client took the call back before it was sent. It has not run.
    pub const CANCELLED: Self = Self(6);
    /// First status that a handler may choose for itself. Only with [`Status::OK`] are there bytes, too.
    pub const APPLICATION: u16 = 0x100;

    /// A handler's own status; `code` counts from [`Status::APPLICATION`].
    pub const fn application(code: u8) -> Self {
        Self(Self::APPLICATION + code as u16)
    }
}

impl core::fmt::Display for Status {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match *self {
            Self::OK => f.write_str("ok"),
            Self::UNKNOWN_METHOD => f.write_str("the server knows no such method"),
            Self::RESPONSE_TOO_LARGE => f.write_str("the answer does not fit a response"),
            Self::BUSY => {
                f.write_str("the server is busy; the call has not run, and may be made again later")
            }
            Self::HANDLER_FAILED => f.write_str("the handler failed; what it did is unknown"),
            Self::DEADLINE_EXCEEDED => f.write_str(
                "the call's time was over before the server could run it; it has not run",
            ),
            Self::CANCELLED => f.write_str("the call was cancelled before it was sent"),
            Self(code) if code >= Self::APPLICATION => {
                write!(f, "application status {}", code - Self::APPLICATION)
            }
            Self(code) => write!(f, "status {code}, unknown to this version"),
        }
    }
}

/// What a trailer says besides `owner` and `valid`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Payload bytes.
    pub len: u32,
    /// Requests: the method. Responses: the [`Status`].
    pub tag: u16,
    /// `FLAG_*`; in requests [`FLAG_EXT`] or [`FLAG_CANCELLED`], or neither.
    pub flags: u16,
    /// The client's number for the record of this call, echoed by the server: low half the record's
    /// index, high half the call number's low bits.
    pub slot: u32,
}

impl Head {
    fn words(self) -> (u64, u64) {
        let first = u64::from(self.len) | u64::from(self.tag) << 32 | u64::from(self.flags) << 48;
        (first, u64::from(self.slot) << 32)
    }

    /// The head in the trailer of a message of this side's own, which ends at `end`.
    pub(crate) fn read<M: Memory>(memory: &M, end: usize) -> Self {
        Self::from_words(memory.load(end - 24), memory.load(end - 16))
    }

    fn from_words(first: u64, second: u64) -> Self {
        Self {
            len: first as u32,
            tag: (first >> 32) as u16,
            flags: (first >> 48) as u16,
            slot: (second >> 32) as u32,
        }
    }
}

/// What an extension says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Ext {
    /// The tenancy that is meant.
    pub epoch: u64,
    /// With [`FLAG_SWITCH`]: the last call that the server took; later ones did not run.
    pub consumed: u64,
    /// With [`FLAG_ACTIVATE`]: the zone.
    pub zone: u32,
    /// With [`FLAG_ACTIVATE`]: the pool.
    pub pool: u32,
}

impl Ext {
    /// That of a request whose call has so much time left, from when the request was sent.
    pub const fn of_budget(budget_ns: u64) -> Self {
        Self {
            epoch: budget_ns,
            consumed: 0,
            zone: 0,
            pool: 0,
        }
    }

    /// That of a request of this side's own, which ends at `end`.
    pub(crate) fn read_budget<M: Memory>(memory: &M, end: usize) -> Self {
        Self::of_budget(memory.load(end - TRAILER_BYTES - EXT_BYTES))
    }

    /// The budget in the extension of a request.
    ///
    /// # Errors
    ///
    /// [`Violation::Options`] if there is more than that.
    pub fn budget_ns(self) -> Result<u64, Violation> {
        match self == Self::of_budget(self.epoch) {
            true => Ok(self.epoch),
            false => Err(Violation::Options),
        }
    }
}

/// Bytes from the start of a message to the end of its block: whole lines.
#[inline]
pub const fn span(len: usize, flags: u16) -> usize {
    let ext = if flags & FLAG_EXT != 0 { EXT_BYTES } else { 0 };
    (len + ext + TRAILER_BYTES + LINE - 1) & !(LINE - 1)
}

/// Offset of the payload of a message that ends at `end`.
#[inline]
pub const fn payload_at(end: usize, len: usize, flags: u16) -> usize {
    end - span(len, flags)
}

/// A message that arrived and is in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// The trailer.
    pub head: Head,
    /// The extension, if there is one.
    pub ext: Option<Ext>,
    /// Offset of the payload; its length is `head.len`.
    pub payload: usize,
}

/// Why the bytes of a peer were refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Violation {
    /// A message longer than its block.
    Length,
    /// Flags that do not exist or do not belong there.
    Flags,
    /// An endpoint entry that names calls other than those that come next, or too many.
    Calls,
    /// A call more than the window holds.
    Window,
    /// An endpoint entry whose staged batch is not inside the client's staging area.
    Staging,
    /// A response to a call that is not outstanding.
    Slot,
    /// A zone or pool that does not exist, or an epoch from the past.
    Mapping,
    /// Words of an extension that must be zero and are not, or a cancelled call with a request.
    Options,
}

impl core::fmt::Display for Violation {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Length => "a message longer than its block",
            Self::Flags => "unknown or misplaced flags",
            Self::Calls => "an endpoint entry with the wrong calls",
            Self::Window => "more calls than the window holds",
            Self::Staging => "a staged batch outside of the staging area",
            Self::Slot => "a response to a call that is not outstanding",
            Self::Mapping => "a zone, pool or epoch that cannot be",
            Self::Options => "an extension that cannot be, or a cancelled call with a request",
        })
    }
}

/// The last word of the message with number `valid` of `owner`.
#[inline]
pub const fn valid_word(owner: u64, valid: u64) -> u64 {
    valid ^ owner
}

/// [`valid_word`], for the engines.
#[inline]
pub(crate) fn last_word(owner: u64, valid: u64) -> u64 {
    if mutant::is(Bug::ValidWithoutOwner) || mutant::is(Bug::OwnerIgnored) {
        return valid;
    }
    valid_word(owner, valid)
}

/// Completes a message whose payload is in place: writes the extension and the trailer, `valid` last.
///
/// The message ends at `end`, and its payload must already be at [`payload_at`].
// It is called for each message, from two places: not inlined, and with its rare parts in line, it costs 45 more.
#[inline(always)]
pub fn seal<M: Memory>(
    memory: &M,
    end: usize,
    owner: u64,
    head: Head,
    ext: Option<Ext>,
    valid: u64,
    placement: Placement,
) {
    debug_assert_eq!(head.flags & FLAG_EXT != 0, ext.is_some());
    let (first, mut second) = head.words();
    if let Some(ext) = ext {
        write_ext(memory, end, ext);
    }
    if placement == Placement::AnyOrder {
        second |= u64::from(message_crc(memory, end, owner, (first, second), valid));
    }
    // Ordering: release; pairs with the acquire in `observe`, here or, after a WRITE, at the peer.
    memory.publish(end - 32, [owner, first, second, last_word(owner, valid)]);
}

/// As [`observe`], for nearly every message: one without flags, and at most `len_max` bytes long, which is what the
/// block was made for. `None` says nothing: it may be there all the same.
#[inline(always)]
pub(crate) fn observe_plain<M: Memory>(
    memory: &M,
    end: usize,
    len_max: u32,
    owner: u64,
    valid: u64,
    placement: Placement,
) -> Option<(Head, usize)> {
    // Ordering: as in `observe`.
    if placement != Placement::InOrder || memory.load_acquire(end - 8) != last_word(owner, valid) {
        return None;
    }
    // Each word is read once: a peer may change it between two looks.
    let [whose, first, second] = memory.load_words(end - 32);
    let head = Head::from_words(first, second);
    // The block holds `len_max` bytes and an extension, so it holds the span of fewer bytes without one.
    let plain = whose == owner && head.flags == 0 && head.len <= len_max;
    plain.then(|| (head, payload_at(end, head.len as usize, 0)))
}

/// Looks for the message with number `valid` from `owner` in the block of `size` bytes that ends at
/// `end`.
///
/// `None`: not there (yet); a block of a former tenant does not match, so it is the same as nothing.
///
/// # Errors
///
/// A [`Violation`] if it is there but cannot be. With [`Placement::AnyOrder`] such a message never
/// counts as arrived.
pub fn observe<M: Memory>(
    memory: &M,
    end: usize,
    size: usize,
    owner: u64,
    valid: u64,
    placement: Placement,
) -> Result<Option<Message>, Violation> {
    // Ordering: pairs with the release in `seal`, or with the last word of the WRITE that brought it.
    if memory.load_acquire(end - 8) != last_word(owner, valid) {
        return Ok(None);
    }
    // Each word is read once: a peer may change it between two looks.
    let [whose, first, second] = memory.load_words(end - 32);
    if whose != owner && !mutant::is(Bug::OwnerIgnored) {
        return Ok(None);
    }
    let head = Head::from_words(first, second);
    let fault = if head.flags & !FLAGS_KNOWN != 0 {
        Some(Violation::Flags)
    } else if (head.len as usize > size || span(head.len as usize, head.flags) > size)
        && !mutant::is(Bug::LengthIgnored)
    {
        Some(Violation::Length)
    } else {
        None
    };
    if placement == Placement::AnyOrder
        && !mutant::is(Bug::CrcIgnored)
        && (fault.is_some()
            || message_crc(memory, end, owner, (first, second), valid) != second as u32)
    {
        return Ok(None);
    }
    if let Some(violation) = fault {
        return Err(violation);
    }
    let ext = match head.flags & FLAG_EXT {
        0 => None,
        _ => Some(read_ext(memory, end)?),
    };
    Ok(Some(Message {
        head,
        ext,
        payload: payload_at(end, head.len as usize, head.flags),
    }))
}

#[inline(never)]
fn write_ext<M: Memory>(memory: &M, end: usize, ext: Ext) {
    let at = end - TRAILER_BYTES - EXT_BYTES;
    memory.store(at, ext.epoch);
    memory.store(at + 8, ext.consumed);
    memory.store(at + 16, u64::from(ext.zone) | u64::from(ext.pool) << 32);
    memory.store(at + 24, 0);
}

#[inline(never)]
fn read_ext<M: Memory>(memory: &M, end: usize) -> Result<Ext, Violation> {
    let at = end - TRAILER_BYTES - EXT_BYTES;
    if memory.load(at + 24) != 0 && !mutant::is(Bug::OptionsIgnored) {
        return Err(Violation::Options);
    }
    let place = memory.load(at + 16);
    Ok(Ext {
        epoch: memory.load(at),
        consumed: memory.load(at + 8),
        zone: place as u32,
        pool: (place >> 32) as u32,
    })
}

/// CRC-32C over everything of a message but the pad and the CRC itself, which is half of the words of its head.
#[inline(never)]
fn message_crc<M: Memory>(
    memory: &M,
    end: usize,
    owner: u64,
    (first, second): (u64, u64),
    valid: u64,
) -> u32 {
    let mut digest = CRC_32C.digest();
    let (head, second) = (
        Head::from_words(first, second),
        second & !u64::from(u32::MAX),
    );
    for word in [owner, first, second, last_word(owner, valid)] {
        digest.update(&word.to_le_bytes());
    }
    let len = head.len as usize;
    digest_range(&mut digest, memory, payload_at(end, len, head.flags), len);
    if head.flags & FLAG_EXT != 0 {
        digest_range(
            &mut digest,
            memory,
            end - TRAILER_BYTES - EXT_BYTES,
            EXT_BYTES,
        );
    }
    digest.finalize()
}

fn digest_range<M: Memory>(digest: &mut Digest<'_, u32>, memory: &M, at: usize, len: usize) {
    let mut piece = [0; LINE];
    let mut done = 0;
    while done < len {
        let piece = &mut piece[..LINE.min(len - done)];
        memory.copy_out(at + done, piece);
        digest.update(piece);
        done += piece.len();
    }
}

/// The cache line at the server that one client writes: "these calls are staged there".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The client writes no more to zones that it was given in this tenancy or an earlier one.
    pub quiet_epoch: u64,
    /// Number of the first staged call; the others follow it.
    pub first_call: u64,
    /// Where the batch is, as an offset in the client's exposed memory.
    pub staged_at: u64,
    /// Bytes from one staged message to the next; each ends at the end of its stride.
    pub stride: u32,
    /// Staged calls, at least 1.
    pub count: u32,
}

/// Offset of the quiet epoch in an endpoint entry. It is also written on its own, as one word.
pub const ENTRY_QUIET_AT: usize = 0;

impl Entry {
    fn words(&self, owner: u64) -> [u64; 5] {
        [
            self.quiet_epoch,
            owner,
            self.first_call,
            self.staged_at,
            u64::from(self.stride) | u64::from(self.count) << 32,
        ]
    }

    fn crc(&self, owner: u64, number: u64) -> u32 {
        let mut digest = CRC_32C.digest();
        for word in self.words(owner) {
            digest.update(&word.to_le_bytes());
        }
        digest.update(&number.to_le_bytes());
        digest.finalize()
    }

    /// Writes the entry with its number to the line at `at`, the number last.
    pub fn seal<M: Memory>(
        &self,
        memory: &M,
        at: usize,
        owner: u64,
        number: u64,
        placement: Placement,
    ) {
        for (i, word) in self.words(owner).into_iter().enumerate() {
            memory.store(at + 8 * i, word);
        }
        let crc = match placement {
            Placement::InOrder => 0,
            Placement::AnyOrder => self.crc(owner, number),
        };
        memory.store(at + 40, crc.into());
        memory.store(at + 48, 0);
        // Ordering: pairs with the acquire in `observe`.
        memory.store_release(at + 56, number);
    }

    /// The entry with number `number` of `owner` in the line at `at`, if it is there.
    pub fn observe<M: Memory>(
        memory: &M,
        at: usize,
        owner: u64,
        number: u64,
        placement: Placement,
    ) -> Option<Self> {
        // Ordering: pairs with the release in `seal`, or with the end of the WRITE that brought it.
        if memory.load_acquire(at + 56) != number || memory.load(at + 8) != owner {
            return None;
        }
        let place = memory.load(at + 32);
        let entry = Self {
            quiet_epoch: memory.load(at + ENTRY_QUIET_AT),
            first_call: memory.load(at + 16),
            staged_at: memory.load(at + 24),
            stride: place as u32,
            count: (place >> 32) as u32,
        };
        let whole = placement == Placement::InOrder
            || memory.load(at + 40) == u64::from(entry.crc(owner, number));
        whole.then_some(entry)
    }
}
