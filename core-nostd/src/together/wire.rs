//! The messages between a follower and the time server: payloads of calls, all numbers little-endian.

use super::clock::{COMMON_MAX_NS, Rotation};

/// Of both messages; a later version has another one.
const MAGIC: u32 = u32::from_le_bytes(*b"SRt1");
const ZERO: u32 = 0;

/// Bytes of a [`TimeRequest`]: `magic 4 | zero 4 | number 8`.
pub const REQUEST_BYTES: usize = 16;
/// Bytes of a [`TimeAnswer`]:
/// `magic 4 | beats 2, zero 2 | number 8 | incarnation 8 | now_ns 8 | held_ns 8 | beat_ns 8`.
pub const ANSWER_BYTES: usize = 48;

/// What is wrong with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// It has another length than the message should have.
    Length(usize),
    /// It is of another kind or version.
    Magic(u32),
    /// Bytes that are kept for later use are not zero.
    Reserved,
    /// A number that is counted from 1 is 0.
    Zero,
    /// The clock shows more than it can, or less than the time for which the request was held.
    Time(u64),
    /// The rotation cannot be.
    Rotation,
}

impl core::fmt::Display for Malformed {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Length(len) => write!(f, "a message about time cannot have {len} bytes"),
            Self::Magic(magic) => write!(
                f,
                "{magic:#010x} is not the mark of a message about time of this version: \
                 run the same version at all servers"
            ),
            Self::Reserved => f.write_str("bytes that must be zero are not"),
            Self::Zero => f.write_str("a number or an incarnation is zero"),
            Self::Time(ns) => write!(f, "a clock cannot show {ns} ns"),
            Self::Rotation => f.write_str("the time server's rotation cannot be"),
        }
    }
}

impl core::error::Error for Malformed {}

/// The `N` bytes from `at`; the caller has checked the length.
fn bytes<const N: usize>(message: &[u8], at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&message[at..at + N]);
    bytes
}

fn u64_at(message: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes(message, at))
}

fn check(message: &[u8], len: usize) -> Result<(), Malformed> {
    if message.len() != len {
        return Err(Malformed::Length(message.len()));
    }
    match u32::from_le_bytes(bytes(message, 0)) {
        MAGIC => Ok(()),
        other => Err(Malformed::Magic(other)),
    }
}

/// A follower asks what time it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeRequest {
    /// From 1, never used again by the same follower.
    pub number: u64,
}

impl TimeRequest {
    /// The bytes of the message.
    pub fn encode(&self) -> [u8; REQUEST_BYTES] {
        let mut message = [0; REQUEST_BYTES];
        message[..4].copy_from_slice(&MAGIC.to_le_bytes());
        message[8..].copy_from_slice(&self.number.to_le_bytes());
        message
    }

    /// The message that the bytes are.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn decode(message: &[u8]) -> Result<Self, Malformed> {
        check(message, REQUEST_BYTES)?;
        if u32::from_le_bytes(bytes(message, 4)) != ZERO {
            return Err(Malformed::Reserved);
        }
        match u64_at(message, 8) {
            0 => Err(Malformed::Zero),
            number => Ok(Self { number }),
        }
    }
}

/// The time server says what time it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeAnswer {
    /// The request's.
    pub number: u64,
    /// Another one each time that the time server starts; not 0.
    pub incarnation: u64,
    /// What its clock showed when it answered, at most [`COMMON_MAX_NS`].
    pub now_ns: u64,
    /// For how long it had held the request, at most `now_ns`.
    pub held_ns: u64,
    /// How it divides the common clock.
    pub rotation: Rotation,
}

impl TimeAnswer {
    /// The bytes of the message.
    pub fn encode(&self) -> [u8; ANSWER_BYTES] {
        let mut message = [0; ANSWER_BYTES];
        message[..4].copy_from_slice(&MAGIC.to_le_bytes());
        message[4..6].copy_from_slice(&self.rotation.beats().to_le_bytes());
        let words = [
            self.number,
            self.incarnation,
            self.now_ns,
            self.held_ns,
            self.rotation.beat_ns(),
        ];
        for (place, word) in message[8..].chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        message
    }

    /// The message that the bytes are.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn decode(message: &[u8]) -> Result<Self, Malformed> {
        check(message, ANSWER_BYTES)?;
        let beats = u16::from_le_bytes(bytes(message, 4));
        if u16::from_le_bytes(bytes(message, 6)) != 0 {
            return Err(Malformed::Reserved);
        }
        let (number, incarnation) = (u64_at(message, 8), u64_at(message, 16));
        if number == 0 || incarnation == 0 {
            return Err(Malformed::Zero);
        }
        let (now_ns, held_ns) = (u64_at(message, 24), u64_at(message, 32));
        if now_ns > COMMON_MAX_NS {
            return Err(Malformed::Time(now_ns));
        }
        if held_ns > now_ns {
            return Err(Malformed::Time(held_ns));
        }
        let rotation =
            Rotation::new(u64_at(message, 40), beats).map_err(|_| Malformed::Rotation)?;
        Ok(Self {
            number,
            incarnation,
            now_ns,
            held_ns,
            rotation,
        })
    }
}
