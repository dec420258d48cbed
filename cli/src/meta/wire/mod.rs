//! Requests and responses as bytes: fixed width, little-endian, decoded in place.
//!
//! | method | request | response when [`Status::Ok`] |
//! |---|---|---|
//! | [`Method::Stat`] | `path_len u16, path` | `status u8, attributes` ([`ATTR_LEN`] bytes) |
//! | [`Method::ReadDir`] | `cookie u64, path_len u16, path` | `status u8, count u16, next u64`, then `kind u8, name_len u8, name` for each entry |
//! | [`Method::Mknod`] | `path_len u16, path` | `status u8, number u64` |
//! | [`Method::Rmnod`] | `path_len u16, path` | `status u8, number u64` |
//!
//! Attributes are `kind u8, mode u32, uid u32, gid u32, size u64, mtime_ns i64, ino u64, number u64`.
//! Any other status is a response of that one byte. Neither requests nor responses may have bytes
//! left over.
//!
//! A path is relative to the root of the tree: components of 1 to [`NAME_MAX`] bytes, separated by
//! one '/', none of them "." or "..", none with a NUL; the empty path is the root.

mod cursor;

use cursor::{Reader, Writer};
use std::fmt;

/// The longest name of one entry, in bytes.
pub const NAME_MAX: usize = 255;
/// The length of encoded attributes.
pub const ATTR_LEN: usize = 45;
/// The shortest response buffer that holds an answer to [`Method::Stat`].
pub const STAT_RESPONSE_LEN: usize = 1 + ATTR_LEN;
/// What a [`Method::ReadDir`] response has before its first entry.
pub const PAGE_HEADER_LEN: usize = 1 + 2 + 8;
/// What a page adds to the name of each entry.
pub const PAGE_ENTRY_OVERHEAD: usize = 2;
/// What a [`Method::ReadDir`] request has besides its path; the other requests have less.
pub const REQUEST_OVERHEAD_MAX: usize = 8 + 2;

/// What a client may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Method {
    /// The attributes of a path.
    Stat = 1,
    /// One page of a directory.
    ReadDir = 2,
    /// Create an empty file in a directory that exists.
    Mknod = 3,
    /// Remove anything that is not a directory.
    Rmnod = 4,
}

/// [`Method::Stat`] as the number that travels.
pub const METHOD_STAT: u16 = Method::Stat as u16;
/// [`Method::ReadDir`] as the number that travels.
pub const METHOD_READDIR: u16 = Method::ReadDir as u16;
/// [`Method::Mknod`] as the number that travels.
pub const METHOD_MKNOD: u16 = Method::Mknod as u16;
/// [`Method::Rmnod`] as the number that travels.
pub const METHOD_RMNOD: u16 = Method::Rmnod as u16;

impl Method {
    /// All methods, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Stat, Self::ReadDir, Self::Mknod, Self::Rmnod];

    /// The method with this number.
    #[must_use]
    pub const fn from_u16(number: u16) -> Option<Self> {
        match number {
            METHOD_STAT => Some(Self::Stat),
            METHOD_READDIR => Some(Self::ReadDir),
            METHOD_MKNOD => Some(Self::Mknod),
            METHOD_RMNOD => Some(Self::Rmnod),
            _ => None,
        }
    }

    /// The method's name in lower case, as in a [`super::load::Mix`].
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stat => "stat",
            Self::ReadDir => "readdir",
            Self::Mknod => "mknod",
            Self::Rmnod => "rmnod",
        }
    }

    /// The method's position in [`Method::ALL`].
    pub(crate) const fn index(self) -> usize {
        self as usize - 1
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The first byte of every response. A path that is not there is an answer, not a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Status {
    /// Done; the answer follows.
    Ok = 0,
    /// The path, or a directory on the way to it, is not there.
    NotFound = 1,
    /// Something on the way to the path, or the path of a `ReadDir`, is not a directory.
    NotADirectory = 2,
    /// `Rmnod` of a directory.
    IsADirectory = 3,
    /// `Mknod` of a path that is there.
    Exists = 4,
    /// `Mknod` above the server's limit of nodes.
    NoSpace = 5,
    /// The request cannot be decoded, or its path or cookie is not valid.
    BadRequest = 6,
    /// The answer, or the first entry of the page, does not fit the response buffer.
    TooSmall = 7,
}

impl Status {
    /// The status with this number.
    #[must_use]
    pub const fn from_u8(number: u8) -> Option<Self> {
        Some(match number {
            0 => Self::Ok,
            1 => Self::NotFound,
            2 => Self::NotADirectory,
            3 => Self::IsADirectory,
            4 => Self::Exists,
            5 => Self::NoSpace,
            6 => Self::BadRequest,
            7 => Self::TooSmall,
            _ => return None,
        })
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ok => "ok",
            Self::NotFound => "not found",
            Self::NotADirectory => "not a directory",
            Self::IsADirectory => "is a directory",
            Self::Exists => "exists",
            Self::NoSpace => "no space for another node",
            Self::BadRequest => "bad request",
            Self::TooSmall => "response buffer too small",
        })
    }
}

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// A directory.
    Dir = 1,
    /// A regular file.
    File = 2,
    /// A symbolic link; it is never followed.
    Symlink = 3,
    /// A device, a socket, a FIFO.
    Other = 4,
}

impl Kind {
    /// The kind with this number.
    #[must_use]
    pub const fn from_u8(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Dir,
            2 => Self::File,
            3 => Self::Symlink,
            4 => Self::Other,
            _ => return None,
        })
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dir => "directory",
            Self::File => "file",
            Self::Symlink => "symbolic link",
            Self::Other => "special file",
        })
    }
}

/// The attributes of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Attr {
    /// What it is.
    pub kind: Kind,
    /// `st_mode`: type and permissions.
    pub mode: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The size in bytes.
    pub size: u64,
    /// The last change of the contents, in nanoseconds since the epoch (before it: negative).
    pub mtime_ns: i64,
    /// The inode number.
    pub ino: u64,
    /// 0 for an entry that was loaded; for a created one the number the server gave it. Numbers
    /// rise, and none is given twice.
    pub number: u64,
}

impl Attr {
    /// The attributes of the created node with this number. They depend on nothing else, so a
    /// client can check each of them.
    #[must_use]
    pub const fn created(number: u64) -> Self {
        Self {
            kind: Kind::File,
            mode: 0o100_644,
            uid: 0,
            gid: 0,
            size: 0,
            mtime_ns: 0,
            ino: number,
            number,
        }
    }
}

/// Why bytes could not be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// It ends too early.
    #[error("too short")]
    Short,
    /// Bytes are left over.
    #[error("bytes left over")]
    Trailing,
    /// No such status, or a status that may not stand there.
    #[error("status byte {0}")]
    Status(u8),
    /// No such kind of entry.
    #[error("kind byte {0}")]
    Kind(u8),
    /// The path breaks the rules of this module, or a name those of a single component.
    #[error("the path or name is not normalised")]
    Path,
}

/// The bounds of a directory's cookies.
///
/// A directory is listed in two parts: the loaded entries, sorted by the bytes of their names, then
/// the created ones in the order of their creation. Cookie 0 is the start; cookie `n` the loaded
/// child with index `n`; a cookie of the second part names the created node that the page comes
/// after. So entries that come and go between two pages shift nothing: no other entry is skipped
/// or listed twice.
pub mod cookie {
    /// Set in every cookie of the second part.
    const CREATED: u64 = 1 << 63;
    const NUMBER_BITS: u32 = 43;

    /// One more than the largest slot of a created node.
    pub const SLOTS_MAX: u32 = 1 << (63 - NUMBER_BITS);
    /// The largest number of a created node.
    pub const NUMBER_MAX: u64 = (1 << NUMBER_BITS) - 1;

    /// The page that comes after the created node `number`, which the server keeps in `slot`.
    #[must_use]
    pub const fn after_created(slot: u32, number: u64) -> u64 {
        CREATED | ((slot % SLOTS_MAX) as u64) << NUMBER_BITS | (number & NUMBER_MAX)
    }

    /// Slot and number of [`after_created`]; nothing for a cookie of the first part.
    #[must_use]
    pub const fn created(cookie: u64) -> Option<(u32, u64)> {
        if cookie & CREATED == 0 {
            return None;
        }
        Some((
            ((cookie & !CREATED) >> NUMBER_BITS) as u32,
            cookie & NUMBER_MAX,
        ))
    }
}

/// Whether `name` may be one component of a path.
#[must_use]
pub fn name_is_valid(name: &[u8]) -> bool {
    // Not `any`: looking at every byte, without a way out, is many bytes at once.
    let bad = name
        .iter()
        .fold(false, |bad, byte| bad | (*byte == 0) | (*byte == b'/'));
    component_is_valid(name) && !bad
}

/// Whether `path` is one that this module's rules allow.
#[must_use]
pub fn path_is_valid(path: &[u8]) -> bool {
    let bad = path.iter().fold(false, |bad, byte| bad | (*byte == 0));
    !bad && (path.is_empty() || path.split(|byte| *byte == b'/').all(component_is_valid))
}

fn component_is_valid(name: &[u8]) -> bool {
    (1..=NAME_MAX).contains(&name.len()) && name != b"." && name != b".."
}

/// A decoded request; the path is known to be valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// See [`Method::Stat`].
    Stat {
        /// Of what.
        path: &'a [u8],
    },
    /// See [`Method::ReadDir`].
    ReadDir {
        /// Where the page begins; see [`cookie`].
        cookie: u64,
        /// Of which directory.
        path: &'a [u8],
    },
    /// See [`Method::Mknod`].
    Mknod {
        /// What to create.
        path: &'a [u8],
    },
    /// See [`Method::Rmnod`].
    Rmnod {
        /// What to remove.
        path: &'a [u8],
    },
}

impl<'a> Request<'a> {
    /// The method that the request is for.
    #[must_use]
    pub const fn method(&self) -> Method {
        match self {
            Self::Stat { .. } => Method::Stat,
            Self::ReadDir { .. } => Method::ReadDir,
            Self::Mknod { .. } => Method::Mknod,
            Self::Rmnod { .. } => Method::Rmnod,
        }
    }

    /// Writes the request to the start of `out`; its length, or nothing where `out` or the length
    /// field is too small for it. The path is not judged.
    pub fn encode(&self, out: &mut [u8]) -> Option<usize> {
        let mut out = Writer::new(out);
        let path = match *self {
            Self::Stat { path } | Self::Mknod { path } | Self::Rmnod { path } => path,
            Self::ReadDir { cookie, path } => {
                out.put(&cookie.to_le_bytes())?;
                path
            }
        };
        out.put(&u16::try_from(path.len()).ok()?.to_le_bytes())?;
        out.put(path)?;
        Some(out.len)
    }

    /// Reads a request of `method`.
    ///
    /// # Errors
    /// Where the bytes are not exactly one request, or the path is not valid.
    pub fn decode(method: Method, bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut bytes = Reader(bytes);
        let cookie = match method {
            Method::ReadDir => u64::from_le_bytes(bytes.array()?),
            _ => 0,
        };
        let len = u16::from_le_bytes(bytes.array()?);
        let path = bytes.take(usize::from(len))?;
        bytes.end()?;
        if !path_is_valid(path) {
            return Err(Malformed::Path);
        }
        Ok(match method {
            Method::Stat => Self::Stat { path },
            Method::ReadDir => Self::ReadDir { cookie, path },
            Method::Mknod => Self::Mknod { path },
            Method::Rmnod => Self::Rmnod { path },
        })
    }
}

/// What a well-formed response says: the answer, or why there is none (never [`Status::Ok`]).
pub type Answer<T> = Result<T, Status>;

/// Writes a response that is only a status; its length, which is 0 only for an empty buffer.
pub fn encode_status(status: Status, response: &mut [u8]) -> usize {
    match response.first_mut() {
        Some(first) => {
            *first = status as u8;
            1
        }
        None => 0,
    }
}

/// Writes the answer to a `Stat`; nothing where it does not fit.
pub fn encode_attr(attr: &Attr, response: &mut [u8]) -> Option<usize> {
    let mut out = Writer::new(response.get_mut(..STAT_RESPONSE_LEN)?);
    out.put(&[Status::Ok as u8, attr.kind as u8])?;
    out.put(&attr.mode.to_le_bytes())?;
    out.put(&attr.uid.to_le_bytes())?;
    out.put(&attr.gid.to_le_bytes())?;
    out.put(&attr.size.to_le_bytes())?;
    out.put(&attr.mtime_ns.to_le_bytes())?;
    out.put(&attr.ino.to_le_bytes())?;
    out.put(&attr.number.to_le_bytes())?;
    Some(out.len)
}

/// Reads the answer to a `Stat`.
///
/// # Errors
/// Where the bytes are not exactly one response.
pub fn decode_attr(response: &[u8]) -> Result<Answer<Attr>, Malformed> {
    decode(response, |bytes| {
        let [kind] = bytes.array()?;
        Ok(Attr {
            kind: Kind::from_u8(kind).ok_or(Malformed::Kind(kind))?,
            mode: u32::from_le_bytes(bytes.array()?),
            uid: u32::from_le_bytes(bytes.array()?),
            gid: u32::from_le_bytes(bytes.array()?),
            size: u64::from_le_bytes(bytes.array()?),
            mtime_ns: i64::from_le_bytes(bytes.array()?),
            ino: u64::from_le_bytes(bytes.array()?),
            number: u64::from_le_bytes(bytes.array()?),
        })
    })
}

/// Writes the answer to a `Mknod` or `Rmnod`; nothing where it does not fit.
pub fn encode_number(number: u64, response: &mut [u8]) -> Option<usize> {
    let mut out = Writer::new(response.get_mut(..NUMBER_RESPONSE_LEN)?);
    out.put(&[Status::Ok as u8])?;
    out.put(&number.to_le_bytes())?;
    Some(out.len)
}

/// The shortest response buffer that holds an answer to [`Method::Mknod`] or [`Method::Rmnod`].
pub const NUMBER_RESPONSE_LEN: usize = 1 + 8;

/// Reads the answer to a `Mknod` or `Rmnod`: the node's number (0 for a loaded entry).
///
/// # Errors
/// Where the bytes are not exactly one response.
pub fn decode_number(response: &[u8]) -> Result<Answer<u64>, Malformed> {
    decode(response, |bytes| Ok(u64::from_le_bytes(bytes.array()?)))
}

/// Writes the answer to a `ReadDir`, entry by entry.
#[derive(Debug)]
pub struct PageWriter<'a> {
    out: Writer<'a>,
    count: u16,
}

impl<'a> PageWriter<'a> {
    /// An empty page; nothing where not even that fits.
    pub fn new(response: &'a mut [u8]) -> Option<Self> {
        // The header is written at the end, when count and next cookie are known.
        let fits = response.len() >= PAGE_HEADER_LEN;
        fits.then_some(Self {
            out: Writer {
                bytes: response,
                len: PAGE_HEADER_LEN,
            },
            count: 0,
        })
    }

    /// Adds an entry; false, and nothing is written, where it does not fit.
    pub fn push(&mut self, kind: Kind, name: &[u8]) -> bool {
        let Ok(len) = u8::try_from(name.len()) else {
            return false;
        };
        let room = self.out.bytes.len() - self.out.len;
        if room < PAGE_ENTRY_OVERHEAD + name.len() || self.count == u16::MAX {
            return false;
        }
        self.count += 1;
        self.out
            .put(&[kind as u8, len])
            .and_then(|()| self.out.put(name))
            .is_some()
    }

    /// How many entries the page has.
    #[must_use]
    pub const fn count(&self) -> u16 {
        self.count
    }

    /// Ends the page; `next` is where the next one begins, 0 where there is none. The length of the
    /// response.
    #[must_use]
    pub fn finish(self, next: u64) -> usize {
        let len = self.out.len;
        let mut header = Writer::new(self.out.bytes);
        // The header fits: `new` made room for it.
        let _fits = header
            .put(&[Status::Ok as u8])
            .and_then(|()| header.put(&self.count.to_le_bytes()))
            .and_then(|()| header.put(&next.to_le_bytes()));
        len
    }
}

/// A decoded page of a directory; all of its entries are known to be well-formed.
#[derive(Clone, Copy, Debug)]
pub struct Page<'a> {
    /// Where the next page begins; 0: this was the last.
    pub next: u64,
    /// How many entries the page has.
    pub count: u16,
    entries: &'a [u8],
}

impl<'a> Page<'a> {
    /// Kind and name of each entry, in order.
    #[must_use]
    pub const fn entries(&self) -> Entries<'a> {
        Entries(Reader(self.entries))
    }
}

/// See [`Page::entries`].
#[derive(Clone, Debug)]
pub struct Entries<'a>(Reader<'a>);

impl<'a> Iterator for Entries<'a> {
    type Item = (Kind, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        self.0.entry().ok()
    }
}

/// Reads the answer to a `ReadDir`.
///
/// # Errors
/// Where the bytes are not exactly one response.
pub fn decode_page(response: &[u8]) -> Result<Answer<Page<'_>>, Malformed> {
    decode(response, |bytes| {
        let count = u16::from_le_bytes(bytes.array()?);
        let next = u64::from_le_bytes(bytes.array()?);
        let entries = bytes.0;
        for _ in 0..count {
            bytes.entry()?;
        }
        Ok(Page {
            next,
            count,
            entries,
        })
    })
}

/// Status, then `answer` where it is [`Status::Ok`], then nothing.
fn decode<'a, T>(
    response: &'a [u8],
    answer: impl FnOnce(&mut Reader<'a>) -> Result<T, Malformed>,
) -> Result<Answer<T>, Malformed> {
    let mut bytes = Reader(response);
    let [status] = bytes.array()?;
    let answer = match Status::from_u8(status).ok_or(Malformed::Status(status))? {
        Status::Ok => Ok(answer(&mut bytes)?),
        refused => Err(refused),
    };
    bytes.end()?;
    Ok(answer)
}
