//! What is counted: one list, from which all follows that goes through every counter. New counters come last: the place of each is part of
//! what servers tell their clients.

macro_rules! counters {
    ($(#[$of:meta])* pub struct $name:ident { $($(#[$doc:meta])* pub $field:ident: u64,)+ }) => {
        $(#[$of])*
        pub struct $name {
            $($(#[$doc])* pub $field: u64,)+
        }

        impl $name {
            /// How many counters there are.
            pub const LEN: usize = [$(stringify!($field)),+].len();
            /// So many of them, the first ones, are gauges; the others only grow.
            pub const GAUGES: usize = 3;
            /// Their names, in the order of [`values`](Self::values).
            pub const NAMES: [&'static str; Self::LEN] = [$(stringify!($field)),+];

            /// All of them.
            pub const fn values(&self) -> [u64; Self::LEN] {
                [$(self.$field),+]
            }

            /// Where all of them are kept.
            pub fn values_mut(&mut self) -> [&mut u64; Self::LEN] {
                [$(&mut self.$field),+]
            }
        }
    };
}

counters! {
    /// What happened so far. All numbers only grow, except for the gauges at the beginning.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Counters {
        /// Gauge: connections open.
        pub connections: u64,
        /// Gauge: groups with members.
        pub groups: u64,
        /// Gauge: zones in quarantine.
        pub quarantined_now: u64,
        /// Requests taken.
        pub calls: u64,
        /// Of those, the ones that came by a WRITE straight into the pool.
        pub direct_writes: u64,
        /// Of those, the ones that were fetched from a staging area.
        pub staged_calls: u64,
        /// Of those, the ones that were answered without being handed out, because their budgets were used up.
        pub calls_late: u64,
        /// Likewise: because of a limit, or of the calls in flight.
        pub calls_busy: u64,
        /// Likewise: because their clients had cancelled them.
        pub calls_cancelled: u64,
        /// READs of staged batches.
        pub warmup_reads: u64,
        /// Slices begun: at a switch, and when a group goes on because no other has demand.
        pub slices: u64,
        /// Context switches: a pool was taken from one group and the other pool given to the next.
        pub switches: u64,
        /// Times a group was drained although nobody else had demand, so that the server could rest.
        pub rests: u64,
        /// Switch events that rode on a response.
        pub switch_events_ridden: u64,
        /// Switch events that took a WRITE of their own.
        pub switch_events_extra: u64,
        /// Zones that entered quarantine.
        pub quarantined_zones: u64,
        /// Zones that a quiet message freed.
        pub zones_quiet: u64,
        /// Zones that a revocation freed.
        pub zones_revoked: u64,
        /// Zones that came back because their client was gone.
        pub zones_fenced: u64,
        /// Connections opened.
        pub opened: u64,
        /// Connections that ended.
        pub gone: u64,
        /// Connections that were ended because of what the peer sent.
        pub violations: u64,
        /// Connections that were ended because a work request failed, or the deadline for a fence had come.
        pub failures: u64,
        /// Connections served in another group's slice, because their fetch outlasted their own.
        pub guests: u64,
        /// Connections moved to a group of their class.
        pub moves: u64,
        /// Groups that went before others which had waited for longer, because it was their beat.
        pub beats_first: u64,
        /// Groups merged.
        pub merges: u64,
        /// Looks at a connection that were in vain because its send queue or the send area was full.
        pub stalls: u64,
    }
}

impl Counters {
    /// What was counted since an earlier reading; gauges are as they are now.
    #[must_use]
    pub fn since(mut self, earlier: &Self) -> Self {
        let all = self.values_mut().into_iter().zip(earlier.values());
        for (value, before) in all.skip(Self::GAUGES) {
            *value = value.saturating_sub(before);
        }
        self
    }
}

/// Of several workers: the sum of everything, gauges too.
impl core::ops::AddAssign for Counters {
    fn add_assign(&mut self, other: Self) {
        for (value, more) in self.values_mut().into_iter().zip(other.values()) {
            *value += more;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_subtracted_and_gauges_are_not() {
        let earlier = Counters {
            calls: 10,
            groups: 3,
            ..Counters::default()
        };
        let later = Counters {
            calls: 17,
            gone: 2,
            groups: 2,
            quarantined_now: 1,
            ..Counters::default()
        };
        let grown = later.since(&earlier);
        assert_eq!((grown.calls, grown.gone), (7, 2));
        assert_eq!((grown.groups, grown.quarantined_now), (2, 1));
    }

    #[test]
    fn sums_are_of_everything() {
        let one = Counters {
            connections: 1,
            calls: 2,
            calls_cancelled: 3,
            ..Counters::default()
        };
        let mut sum = one;
        sum += one;
        assert_eq!((sum.connections, sum.calls, sum.calls_cancelled), (2, 4, 6));
        assert_eq!(sum.values().iter().sum::<u64>(), 12);
    }

    #[test]
    fn each_value_has_its_name() {
        let mut counters = Counters::default();
        for (place, value) in (0..).zip(counters.values_mut()) {
            *value = place;
        }
        let place = |name| Counters::NAMES.iter().position(|it| *it == name).unwrap() as u64;
        assert_eq!(counters.quarantined_now, place("quarantined_now"));
        assert_eq!(counters.calls, place("calls"));
        assert_eq!(place("quarantined_now") + 1, Counters::GAUGES as u64);
    }
}
