//! Division of numbers of 128 bits. The compiler's own is a function of its run-time library, which a program that has no
//! unwinder cannot link.

/// Quotient, rounded down, and remainder. A divisor of 0 counts as 1.
fn div_rem(number: u128, divisor: u64) -> (u128, u64) {
    let divisor = divisor.max(1);
    match u32::try_from(divisor) {
        Ok(divisor) => by_digits(number, divisor),
        Err(_) => by_bits(number, divisor),
    }
}

/// Long division in base 2^32.
fn by_digits(number: u128, divisor: u32) -> (u128, u64) {
    let (mut quotient, mut rest) = (0, 0);
    for digit in number.to_be_bytes().chunks_exact(4) {
        let digit = digit
            .iter()
            .fold(0, |all, &byte| all << 8 | u64::from(byte));
        // The rest is below 2^32.
        let part = rest << 32 | digit;
        quotient = quotient << 32 | u128::from(part / u64::from(divisor));
        rest = part % u64::from(divisor);
    }
    (quotient, rest)
}

/// Long division in base 2, for the rare divisor that is no digit.
fn by_bits(mut number: u128, divisor: u64) -> (u128, u64) {
    let (mut quotient, mut rest) = (0_u128, 0_u128);
    for _ in 0..u128::BITS {
        rest = rest << 1 | number >> 127;
        number <<= 1;
        quotient <<= 1;
        if rest >= u128::from(divisor) {
            rest -= u128::from(divisor);
            quotient |= 1;
        }
    }
    // Below the divisor.
    (quotient, rest as u64)
}

/// Rounded up.
pub(super) fn div_ceil(number: u128, divisor: u64) -> u128 {
    let (quotient, rest) = div_rem(number, divisor);
    quotient + u128::from(rest > 0)
}

/// Rounded towards 0.
pub(super) fn div(number: i128, divisor: u64) -> i128 {
    let (quotient, _) = div_rem(number.unsigned_abs(), divisor);
    // Where it does not fit, both divisor and number are at an end of their range, and so is the outcome.
    let quotient = i128::try_from(quotient).unwrap_or(i128::MAX);
    if number < 0 { -quotient } else { quotient }
}

/// Rounded down.
pub(super) fn div_floor(number: i128, divisor: u64) -> i128 {
    if number >= 0 {
        return div(number, divisor);
    }
    let quotient = div_ceil(number.unsigned_abs(), divisor);
    i128::try_from(quotient).map_or(i128::MIN, |quotient| -quotient)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Numbers of any length.
    fn number() -> impl Strategy<Value = i128> {
        (any::<i128>(), 0_u32..127).prop_map(|(number, shift)| number >> shift)
    }

    fn divisor() -> impl Strategy<Value = u64> {
        (1..=u64::MAX, 0_u32..63).prop_map(|(divisor, shift)| (divisor >> shift).max(1))
    }

    proptest! {
        #[test]
        fn it_is_division(number in number(), divisor in divisor()) {
            let wide = i128::from(divisor);
            // i128::MIN by 1 is its own outcome, and the only one whose magnitude does not fit.
            prop_assume!(number != i128::MIN);
            prop_assert_eq!(div(number, divisor), number / wide);
            prop_assert_eq!(div_floor(number, divisor), number.div_euclid(wide));
            let magnitude = number.unsigned_abs();
            prop_assert_eq!(div_ceil(magnitude, divisor), magnitude.div_ceil(divisor.into()));
        }
    }

    #[test]
    fn the_ends_of_the_ranges_are_divided() {
        for divisor in [1, 2, u64::from(u32::MAX), 1 << 32, u64::MAX] {
            for number in [0, 1, u128::MAX - 1, u128::MAX] {
                let expected = (
                    number / u128::from(divisor),
                    (number % u128::from(divisor)) as u64,
                );
                assert_eq!(div_rem(number, divisor), expected, "{number} by {divisor}");
            }
        }
        assert_eq!(div_floor(i128::MIN, 1), i128::MIN);
        assert_eq!(div_rem(7, 0), (7, 0));
    }
}
