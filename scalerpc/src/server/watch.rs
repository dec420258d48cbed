//! Events for the program's `tracing` subscriber, with the feature of that name; else nothing. [`observe`](crate::observe)
//! lists them.
//!
//! What no subscriber wants costs a round a load and a comparison. None of it allocates; what a subscriber does is its
//! own affair.

#[cfg(feature = "tracing")]
pub(super) use on::Watch;

#[cfg(not(feature = "tracing"))]
pub(super) use off::Watch;

#[cfg(feature = "tracing")]
mod on {
    use scalerpc_core::Store;
    use scalerpc_core::server::ServerEngine;

    use crate::server::Eviction;

    const TARGET: &str = "scalerpc::server";
    /// Time between two events of slow rounds.
    const PAUSE_NS: u64 = 1_000_000_000;

    /// What is known of the last round.
    #[derive(Debug, Default)]
    pub(in crate::server) struct Watch {
        round_ns: u64,
        /// Something was done in it.
        was_busy: bool,
        told_ns: Option<u64>,
        switches: u64,
    }

    impl Watch {
        /// A round begins.
        #[inline]
        pub(in crate::server) fn begin<S: Store>(&mut self, now_ns: u64, engine: &ServerEngine<S>) {
            let took_ns = now_ns.saturating_sub(self.round_ns);
            self.round_ns = now_ns;
            let slice_ns = engine.time_slice_ns();
            if self.was_busy && took_ns > slice_ns {
                self.slow(took_ns, slice_ns);
            }
        }

        #[cold]
        fn slow(&mut self, round_ns: u64, slice_ns: u64) {
            let told = self.told_ns.replace(self.round_ns);
            if told.is_some_and(|told_ns| self.round_ns.saturating_sub(told_ns) < PAUSE_NS) {
                self.told_ns = told;
                return;
            }
            tracing::warn!(target: TARGET, round_ns, slice_ns, "slow round");
        }

        /// A round is over.
        #[inline]
        pub(in crate::server) fn end<S: Store>(&mut self, done: usize, engine: &ServerEngine<S>) {
            self.was_busy = done > 0;
            if tracing::enabled!(target: TARGET, tracing::Level::TRACE) {
                self.switched(engine);
            }
        }

        #[cold]
        fn switched<S: Store>(&mut self, engine: &ServerEngine<S>) {
            let switches = engine.counters().switches;
            if switches == self.switches {
                return;
            }
            self.switches = switches;
            let pools = (0..2).filter_map(|pool| engine.pool(pool));
            let served = pools.filter(|pool| pool.processing).last();
            let (epoch, group) = served.map_or((None, None), |pool| (pool.epoch, pool.group));
            tracing::trace!(target: TARGET, switches, epoch, group, "context switch");
        }

        pub(in crate::server) fn opened(&self, seat: u32) {
            tracing::debug!(target: TARGET, seat, "connection opened");
        }

        pub(in crate::server) fn gone(&self, seat: u32) {
            tracing::debug!(target: TARGET, seat, "connection gone");
        }

        pub(in crate::server) fn evicted(&self, eviction: Eviction) {
            let Eviction { seat, why } = eviction;
            match why {
                Some(why) => {
                    tracing::warn!(target: TARGET, seat, %why, "connection evicted");
                }
                None => {
                    let why = "its connection failed";
                    tracing::warn!(target: TARGET, seat, why, "connection evicted");
                }
            }
        }
    }
}

#[cfg(not(feature = "tracing"))]
mod off {
    use scalerpc_core::Store;
    use scalerpc_core::server::ServerEngine;

    use crate::server::Eviction;

    /// Nobody watches.
    #[derive(Debug, Default)]
    pub(in crate::server) struct Watch(());

    impl Watch {
        pub(in crate::server) fn begin<S: Store>(&mut self, _: u64, _: &ServerEngine<S>) {}
        pub(in crate::server) fn end<S: Store>(&mut self, _: usize, _: &ServerEngine<S>) {}
        pub(in crate::server) fn opened(&self, _: u32) {}
        pub(in crate::server) fn gone(&self, _: u32) {}
        pub(in crate::server) fn evicted(&self, _: Eviction) {}
    }
}
