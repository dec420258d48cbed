//! Samples of sides that take turns, and what is said of them.

use serde::Serialize;

/// The median of samples, and their quartiles.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Summary {
    pub(crate) median: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

/// Lets each of `sides` sides be measured in each round, in an order that turns round every time, so that what drifts
/// meets all of them alike. Returns the samples by side.
pub(crate) fn interleave<E>(
    rounds: usize,
    sides: usize,
    mut measure: impl FnMut(usize) -> Result<f64, E>,
) -> Result<Vec<Vec<f64>>, E> {
    let mut samples = vec![Vec::with_capacity(rounds); sides];
    for round in 0..rounds {
        for i in 0..sides {
            let side = if round % 2 == 0 { i } else { sides - 1 - i };
            samples[side].push(measure(side)?);
        }
    }
    Ok(samples)
}

/// The ratios of two sides, round by round.
pub(crate) fn ratios(of: &[f64], to: &[f64]) -> Vec<f64> {
    of.iter().zip(to).map(|(of, to)| of / to).collect()
}

/// `None` without a sample that is a number.
pub(crate) fn summary(samples: &[f64]) -> Option<Summary> {
    let mut sorted: Vec<f64> = samples
        .iter()
        .copied()
        .filter(|it| it.is_finite())
        .collect();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().checked_sub(1)?;
    let at = |part: f64| {
        let place = part * last as f64;
        let (below, above) = (
            sorted[place.floor() as usize],
            sorted[place.ceil() as usize],
        );
        below + (above - below) * place.fract()
    };
    Some(Summary {
        median: at(0.5),
        low: at(0.25),
        high: at(0.75),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_median_and_quartiles_of_samples_in_any_order() {
        let of = |samples: &[f64]| summary(samples).unwrap();
        let odd = of(&[5.0, 1.0, 4.0, 2.0, 3.0]);
        assert_eq!((odd.low, odd.median, odd.high), (2.0, 3.0, 4.0));
        assert_eq!(of(&[4.0, 1.0]).median, 2.5);
        assert_eq!(of(&[7.0, f64::NAN, f64::INFINITY]).high, 7.0);
        assert_eq!(summary(&[f64::NAN]), None);
    }

    #[test]
    fn sides_take_turns_and_the_order_turns_round() {
        let mut order = Vec::new();
        let samples = interleave(2, 3, |side| {
            order.push(side);
            Ok::<f64, ()>(order.len() as f64)
        });
        assert_eq!(order, [0, 1, 2, 2, 1, 0]);
        let samples = samples.unwrap();
        assert_eq!(samples, [[1.0, 6.0], [2.0, 5.0], [3.0, 4.0]]);
        assert_eq!(ratios(&samples[0], &samples[1]), [0.5, 1.2]);
    }
}
