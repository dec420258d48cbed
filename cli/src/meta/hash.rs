//! The hash of paths and names: short inputs, and no allocation.

/// The seed of what is hashed on no client's behalf.
pub(crate) const SEED: u64 = 0x9e37_79b9_7f4a_7c15;

const MULTIPLIER: u64 = 0xa076_1d64_78bd_642f;

pub(crate) fn bytes(seed: u64, bytes: &[u8]) -> u64 {
    let mut hash = fold(seed ^ bytes.len() as u64);
    let mut rest = bytes;
    while let Some((word, tail)) = rest.split_first_chunk::<8>() {
        hash = fold(hash ^ u64::from_le_bytes(*word));
        rest = tail;
    }
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    fold(hash ^ u64::from_le_bytes(last))
}

fn fold(value: u64) -> u64 {
    // A zero would stay zero whatever follows: the added constant moves it.
    let product = u128::from(value.wrapping_add(SEED)) * u128::from(MULTIPLIER);
    (product as u64) ^ ((product >> 64) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn length_and_order_and_seed_count() {
        assert_ne!(bytes(SEED, b"a"), bytes(SEED, b"a\0"));
        assert_ne!(bytes(SEED, b"01234567"), bytes(SEED, b"01234567\0"));
        assert_ne!(bytes(SEED, b"a/b"), bytes(SEED, b"b/a"));
        assert_ne!(bytes(SEED, b"a"), bytes(SEED + 1, b"a"));
    }

    #[test]
    fn like_names_are_spread() {
        let mut seen: Vec<u64> = (0..10_000_u32)
            .map(|n| bytes(SEED, format!("file-{n}").as_bytes()) & 0xffff_ffff)
            .collect();
        seen.sort_unstable();
        seen.dedup();
        assert!(seen.len() > 9_990, "{} distinct of 10000", seen.len());
    }
}
