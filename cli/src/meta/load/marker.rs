//! The names that clients create: no real entry has one, and no two clients share one.

const PREFIX: &[u8] = b".scalerpc-";
const DIGITS_U32: usize = 10;
const DIGITS_U64: usize = 20;

/// The length of the longest name.
pub const MARKER_LEN_MAX: usize = PREFIX.len() + DIGITS_U32 + 1 + DIGITS_U64;

/// A name on the stack.
#[derive(Clone, Copy, Debug)]
pub(super) struct Marker {
    bytes: [u8; MARKER_LEN_MAX],
    len: usize,
}

impl Marker {
    /// The name of the client's `n`-th node.
    pub(super) fn node(client: u32, n: u64) -> Self {
        let mut marker = Self {
            bytes: [0; MARKER_LEN_MAX],
            len: 0,
        };
        marker.put(PREFIX);
        marker.put_number(u64::from(client));
        marker.put(b"-");
        marker.put_number(n);
        marker
    }

    /// A name that no client ever creates.
    pub(super) fn missing(n: u32) -> Self {
        let mut marker = Self {
            bytes: [0; MARKER_LEN_MAX],
            len: 0,
        };
        marker.put(PREFIX);
        marker.put(b"missing-");
        marker.put_number(u64::from(n));
        marker
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Client and `n` of a name that [`Marker::node`] made.
    pub(super) fn parse(name: &[u8]) -> Option<(u32, u64)> {
        let rest = name.strip_prefix(PREFIX)?;
        let dash = rest.iter().position(|byte| *byte == b'-')?;
        let client = u32::try_from(number(&rest[..dash])?).ok()?;
        Some((client, number(&rest[dash + 1..])?))
    }

    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    fn put_number(&mut self, mut number: u64) {
        let mut digits = [0; DIGITS_U64];
        let mut at = DIGITS_U64;
        loop {
            at -= 1;
            digits[at] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                break;
            }
        }
        self.put(&digits[at..]);
    }
}

/// A number in the one way to write it.
fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || (digits.len() > 1 && digits[0] == b'0') {
        return None;
    }
    digits.iter().try_fold(0_u64, |number, digit| {
        let digit = digit.checked_sub(b'0').filter(|digit| *digit < 10)?;
        number.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        for (client, n) in [(0, 0), (7, 1234), (u32::MAX, u64::MAX)] {
            let marker = Marker::node(client, n);
            assert_eq!(Marker::parse(marker.as_bytes()), Some((client, n)));
        }
        assert_eq!(
            Marker::node(u32::MAX, u64::MAX).as_bytes().len(),
            MARKER_LEN_MAX
        );
        assert_eq!(Marker::node(3, 14).as_bytes(), b".scalerpc-3-14");
    }

    #[test]
    fn nothing_else_is_a_node() {
        for name in [
            &b""[..],
            b".scalerpc",
            b".scalerpc-",
            b".scalerpc-1",
            b".scalerpc-1-",
            b".scalerpc--1",
            b".scalerpc-01-1",
            b".scalerpc-1-01",
            b".scalerpc-1-1x",
            b".scalerpc-4294967296-1",
            b".scalerpc-1-18446744073709551616",
            Marker::missing(u32::MAX).as_bytes(),
        ] {
            assert_eq!(Marker::parse(name), None, "{}", name.escape_ascii());
        }
    }
}
