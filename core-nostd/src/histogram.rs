//! Distributions of times and counts, in a fixed number of buckets.

/// Sub-buckets of an octave, as a power of two.
const SUB_BITS: u32 = 3;
const SUBS: u64 = 1 << SUB_BITS;
/// Buckets of a [`Histogram`], so that one byte names a bucket.
pub const BUCKETS: usize = 256;
/// Values from here on are in the last bucket, with the last sixteenth below.
const VALUE_END: u64 = 1 << (BUCKETS as u32 / SUBS as u32 + SUB_BITS - 1);

/// How often each value came: exact below 8, then in eight buckets for each power of two.
///
/// A plain struct of 2 KiB. To record a value takes a shift and no division. [`quantile`](Self::quantile) is never
/// too low, and at most 1/8 too high; values from 15 x 2^30 on (16 s in nanoseconds) are in one bucket, and only the
/// maximum tells them apart. Count, sum, minimum and maximum are exact.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Histogram {
    buckets: [u64; BUCKETS],
    count: u64,
    sum: u64,
    min: u64,
    max: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

/// Only the buckets that are not empty, by their smallest value.
impl core::fmt::Debug for Histogram {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let buckets = self.buckets();
        f.debug_map()
            .entries(buckets.map(|(bucket, count)| (Self::bucket_min(bucket), count)))
            .finish()
    }
}

impl Histogram {
    /// One without values.
    pub const fn new() -> Self {
        Self {
            buckets: [0; BUCKETS],
            count: 0,
            sum: 0,
            min: u64::MAX,
            max: 0,
        }
    }

    /// The bucket of a value.
    #[inline]
    pub const fn bucket_of(value: u64) -> u8 {
        if value >= VALUE_END {
            return u8::MAX;
        }
        if value < SUBS {
            return value as u8;
        }
        let octave = value.ilog2();
        let sub = (value >> (octave - SUB_BITS)) & (SUBS - 1);
        (((octave - SUB_BITS + 1) << SUB_BITS) + sub as u32) as u8
    }

    /// The largest value of a bucket; of the last one, `u64::MAX`.
    pub const fn bucket_max(bucket: u8) -> u64 {
        if bucket == u8::MAX {
            return u64::MAX;
        }
        Self::bucket_min(bucket + 1) - 1
    }

    /// The smallest value of a bucket.
    pub const fn bucket_min(bucket: u8) -> u64 {
        let bucket = bucket as u64;
        if bucket < SUBS {
            return bucket;
        }
        let shift = (bucket >> SUB_BITS) - 1;
        (SUBS + (bucket & (SUBS - 1))) << shift
    }

    /// Counts a value.
    #[inline]
    pub const fn record(&mut self, value: u64) {
        self.buckets[Self::bucket_of(value) as usize] += 1;
        self.count += 1;
        self.sum = self.sum.saturating_add(value);
        if value < self.min {
            self.min = value;
        }
        if value > self.max {
            self.max = value;
        }
    }

    /// Values that were counted.
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Their sum; it stays at `u64::MAX` when it gets there.
    pub const fn sum(&self) -> u64 {
        self.sum
    }

    /// The smallest value, if there is one.
    pub fn min(&self) -> Option<u64> {
        (self.count > 0).then_some(self.min)
    }

    /// The largest value, if there is one.
    pub fn max(&self) -> Option<u64> {
        (self.count > 0).then_some(self.max)
    }

    /// The value that `per_mille` thousandths of all values do not exceed, if there is one: not too low, and at most
    /// 1/8 too high (above 15 x 2^30 it is the maximum). 500 is the median, 1000 or more the maximum.
    pub fn quantile(&self, per_mille: u32) -> Option<u64> {
        let per_mille = u64::from(per_mille.min(1000));
        // In two parts, so that no product overflows.
        let rank = self.count / 1000 * per_mille + (self.count % 1000 * per_mille).div_ceil(1000);
        let mut below = 0_u64;
        for (bucket, count) in self.buckets() {
            below = count.saturating_add(below);
            if below >= rank {
                return Some(Self::bucket_max(bucket).min(self.max));
            }
        }
        None
    }

    /// Values in a bucket.
    pub const fn bucket(&self, bucket: u8) -> u64 {
        self.buckets[bucket as usize]
    }

    /// Buckets that are not empty, in order, and the values in each.
    pub fn buckets(&self) -> impl Iterator<Item = (u8, u64)> + '_ {
        let all = (0..=u8::MAX).zip(self.buckets);
        all.filter(|(_, count)| *count > 0)
    }

    /// Adds what another one has counted.
    pub fn merge(&mut self, other: &Self) {
        for (mine, others) in self.buckets.iter_mut().zip(other.buckets) {
            *mine = mine.saturating_add(others);
        }
        self.count = self.count.saturating_add(other.count);
        self.sum = self.sum.saturating_add(other.sum);
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }

    /// What was counted since `earlier`, a copy of this one. Its minimum and maximum are those of the buckets, so the
    /// one may be 1/8 too low and the other 1/8 too high.
    ///
    /// Of one that is no copy of this one, buckets that have shrunk count as empty.
    pub fn since(&self, earlier: &Self) -> Self {
        let news = (0..=u8::MAX).map(|bucket| {
            let at = usize::from(bucket);
            (bucket, self.buckets[at].saturating_sub(earlier.buckets[at]))
        });
        let sum = self.sum.saturating_sub(earlier.sum);
        Self::from_parts(sum, self.min, self.max, news)
    }

    /// One that has counted these values, of which `sum`, `min` and `max` are known, too. Bounds that the buckets
    /// exclude are narrowed to what they allow. A bucket that comes twice has the sum.
    pub fn from_parts(
        sum: u64,
        min: u64,
        max: u64,
        buckets: impl IntoIterator<Item = (u8, u64)>,
    ) -> Self {
        let mut made = Self::new();
        for (bucket, count) in buckets {
            let to = &mut made.buckets[usize::from(bucket)];
            *to = to.saturating_add(count);
            made.count = made.count.saturating_add(count);
        }
        let (first, last) = (made.buckets().next(), made.buckets().last());
        if let (Some((first, _)), Some((last, _))) = (first, last) {
            made.sum = sum;
            made.min = min.clamp(Self::bucket_min(first), Self::bucket_max(first));
            // In one bucket both may have been wrong.
            let least = Self::bucket_min(last).max(made.min);
            made.max = max.clamp(least, Self::bucket_max(last));
        }
        made
    }
}
