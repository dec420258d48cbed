//! Memory that is shared: copies move what they are to move, and nothing else, however long they are.

use scalerpc_core::Memory;

use crate::common::arena::Arena;

const LEN: usize = 1024;

/// Bytes that differ from their neighbours, and from those of another `salt`.
fn pattern(len: usize, salt: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 256 + salt) as u8).collect()
}

fn filled(salt: usize) -> Arena {
    let arena = Arena::new(LEN);
    arena.region().copy_in(0, &pattern(LEN, salt));
    arena
}

fn bytes_of(arena: &Arena) -> Vec<u8> {
    let mut bytes = vec![0; LEN];
    arena.region().copy_out(0, &mut bytes);
    bytes
}

/// From words at any place to words at any other, by 0 to 5 lines and all that is between.
#[test]
fn a_copy_between_regions_moves_its_words_and_no_others() {
    let source = filled(1);
    for (to, from) in [(0, 0), (64, 8), (8, 64), (24, 40)] {
        for len in (0..=320).step_by(8) {
            let target = filled(2);
            let mut expected = pattern(LEN, 2);
            expected[to..to + len].copy_from_slice(&pattern(LEN, 1)[from..from + len]);
            target.region().copy_from(to, source.region(), from, len);
            assert!(bytes_of(&target) == expected, "{len} from {from} to {to}");
        }
    }
}

#[test]
fn bytes_that_are_copied_in_end_with_zeros_up_to_a_word() {
    for (to, start) in [(0, 0), (64, 1), (8, 7)] {
        for len in 0..=320_usize {
            let target = filled(2);
            let mut expected = pattern(LEN, 2);
            let padded = len.next_multiple_of(8);
            expected[to..to + padded].fill(0);
            let bytes = &pattern(LEN, 1)[start..start + len];
            expected[to..to + len].copy_from_slice(bytes);
            target.region().copy_in(to, bytes);
            assert!(bytes_of(&target) == expected, "{len} bytes to {to}");
        }
    }
}

#[test]
fn words_together_are_as_words_one_by_one() {
    let target = filled(2);
    target.region().publish(40, [5, 6, 7]);
    let words: Vec<u64> = (32..=64)
        .step_by(8)
        .map(|at| target.region().load(at))
        .collect();
    assert_eq!(
        target.region().load_words(32),
        [words[0], 5, 6, 7, words[4]]
    );
    assert_eq!(words[1..4], [5, 6, 7]);
    let rest = [
        bytes_of(&target)[..40].to_vec(),
        bytes_of(&target)[64..].to_vec(),
    ]
    .concat();
    let before = pattern(LEN, 2);
    assert!(rest == [&before[..40], &before[64..]].concat());
}

/// Where memory ends, a copy of lines ends, too.
#[test]
#[should_panic(expected = "past the end")]
fn a_copy_past_the_end_is_refused() {
    let (target, source) = (filled(2), filled(1));
    target
        .region()
        .copy_from(LEN - 128, source.region(), 0, 192);
}
