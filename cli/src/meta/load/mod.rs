//! The load generator: random requests for real paths, and a judgement of every answer.
//!
//! A [`Generator`] belongs to one client, which has any number of calls outstanding, all on one
//! connection whose server runs them in order. Every call that [`Generator::next`] plans must be
//! given back once: to [`Generator::check`] with its response, or to [`Generator::forget`] where
//! there will be none. The order in which they come back does not matter.
//!
//! Clients share the server's tree. Each creates nodes in real directories under names that carry
//! its own number, and removes no others. So a client knows exactly what the server must say of the
//! loaded entries and of its own nodes, whatever the others do; it accepts other clients' nodes
//! in a directory, and nothing else. The number of a client must be unique among all that ever
//! talk to a server, since a client does not expect nodes of an earlier one.

mod check;
mod marker;
mod mix;
mod own;

pub use check::{PageFault, WrongAnswer};
pub use marker::MARKER_LEN_MAX;
pub use mix::{Mix, MixError};
pub use own::OWN_NODES;

use super::tree::{NodeId, Tree};
use super::wire::{self, Kind, Method, Request, Status};
use marker::Marker;
use own::{Own, SlotId, bit};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;

/// How many paths in a row may be too long before the root is asked for instead.
const ATTEMPTS: u32 = 8;
/// All clients meet in the first so many directories.
const SHARED_DIRS: usize = 4;

/// Why there is no generator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GeneratorError {
    /// The mix has no weight above 0.
    #[error("the mix calls nothing")]
    EmptyMix,
    /// Requests of this length are too short for the mix.
    #[error("requests of at most {max} bytes are too short: {need} are needed")]
    RequestMax {
        /// What was asked for.
        max: usize,
        /// The least that is possible.
        need: usize,
    },
    /// Responses of this length are too short for the mix and the tree's longest name.
    #[error("responses of at most {max} bytes are too short: {need} are needed")]
    ResponseMax {
        /// What was asked for.
        max: usize,
        /// The least that is possible.
        need: usize,
    },
}

/// What the answer to one call must be: small, and only the generator that made it can read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expect(Expected);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    /// The attributes of a loaded entry.
    Stat { node: NodeId },
    /// The attributes of an own node, or that it is not there.
    OwnStat { slot: SlotId, present: bool },
    /// A page of a directory in which these own nodes are live.
    Page { dir: NodeId, cookie: u64, live: u64 },
    /// An own node is created.
    Mknod { slot: SlotId },
    /// An own node is removed.
    Rmnod { slot: SlotId },
    /// A request, about something at or below `near`, that must be turned down.
    Refused {
        method: Method,
        near: NodeId,
        status: Status,
    },
}

impl Expect {
    /// The method that was called.
    #[must_use]
    pub const fn method(&self) -> Method {
        match self.0 {
            Expected::Stat { .. } | Expected::OwnStat { .. } => Method::Stat,
            Expected::Page { .. } => Method::ReadDir,
            Expected::Mknod { .. } => Method::Mknod,
            Expected::Rmnod { .. } => Method::Rmnod,
            Expected::Refused { method, .. } => method,
        }
    }

    /// The own nodes on which the judgement depends.
    const fn slots(&self) -> u64 {
        match self.0 {
            Expected::Stat { .. } | Expected::Refused { .. } => 0,
            Expected::Page { live, .. } => live,
            Expected::OwnStat { slot, .. }
            | Expected::Mknod { slot }
            | Expected::Rmnod { slot } => bit(slot),
        }
    }
}

/// A call to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planned {
    /// The method's number.
    pub method: u16,
    /// The length of the request.
    pub len: usize,
    /// What the answer must be: for [`Generator::check`] or [`Generator::forget`].
    pub expect: Expect,
}

/// What a generator has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadCounters {
    /// Calls planned of each method, in the order of [`Method::ALL`].
    pub planned: [u64; Method::ALL.len()],
    /// Answers that were right.
    pub right: u64,
    /// Answers that were wrong.
    pub wrong: u64,
    /// Calls without an answer.
    pub forgotten: u64,
    /// Of the right answers: the server had no space for a node.
    pub no_space: u64,
    /// Paths that were passed over because a request with them would be too long.
    pub skipped_long: u64,
}

impl LoadCounters {
    /// Calls that were planned and not yet given back.
    #[must_use]
    pub fn outstanding(&self) -> u64 {
        let back = self.right + self.wrong + self.forgotten;
        self.planned.iter().sum::<u64>().saturating_sub(back)
    }
}

/// One client's load generator. See the [module](self).
#[derive(Clone, Debug)]
pub struct Generator {
    tree: Arc<Tree>,
    client: u32,
    mix: Mix,
    mix_total: u64,
    request_max: usize,
    rng: SmallRng,
    own: Own,
    /// A page that did not end its directory: where, and how it goes on.
    follow: Option<(NodeId, u64)>,
    /// Where paths are put together.
    path: Vec<u8>,
    counters: LoadCounters,
}

impl Generator {
    /// The generator of client number `client`, for requests of at most `request_max` bytes and a
    /// server with response buffers of `response_max` bytes. Equal arguments give equal requests
    /// as long as the answers are equal.
    ///
    /// # Errors
    /// Where the mix is empty, or a maximum is too small for what the mix calls.
    pub fn new(
        tree: Arc<Tree>,
        client: u32,
        seed: u64,
        mix: Mix,
        request_max: usize,
        response_max: usize,
    ) -> Result<Self, GeneratorError> {
        let mix_total = mix.total();
        if mix_total == 0 {
            return Err(GeneratorError::EmptyMix);
        }
        let marker = if mix.mknod > 0 || mix.rmnod > 0 {
            MARKER_LEN_MAX
        } else {
            0
        };
        let need = wire::REQUEST_OVERHEAD_MAX + marker;
        if request_max < need {
            return Err(GeneratorError::RequestMax {
                max: request_max,
                need,
            });
        }
        let entry = wire::PAGE_ENTRY_OVERHEAD + tree.name_len_max().max(MARKER_LEN_MAX);
        let page = if mix.readdir > 0 {
            wire::PAGE_HEADER_LEN + entry
        } else {
            0
        };
        let need = page.max(wire::STAT_RESPONSE_LEN);
        if response_max < need {
            return Err(GeneratorError::ResponseMax {
                max: response_max,
                need,
            });
        }
        // Clients with one seed between them must still differ.
        let seed = seed ^ u64::from(client).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Ok(Self {
            tree,
            client,
            mix,
            mix_total,
            request_max,
            rng: SmallRng::seed_from_u64(seed),
            own: Own::new(),
            follow: None,
            path: vec![0; request_max],
            counters: LoadCounters::default(),
        })
    }

    /// Plans a call and writes its request to the start of `out`, which has at least `request_max`
    /// bytes. (In a shorter one not every request may fit; an empty request, which a server answers
    /// with [`Status::BadRequest`], is then planned.)
    pub fn next(&mut self, out: &mut [u8]) -> Planned {
        let roll = self.rng.random_range(0..self.mix_total);
        let planned = match self.mix.pick(roll) {
            Method::Stat => None,
            Method::ReadDir => self.plan_read_dir(out),
            // With nothing to remove, something must be created first, and the reverse.
            Method::Mknod => self.plan_mknod(out).or_else(|| self.plan_rmnod(out)),
            Method::Rmnod => self.plan_rmnod(out).or_else(|| self.plan_mknod(out)),
        };
        let planned = match planned.or_else(|| self.plan_stat(out)) {
            Some(planned) => planned,
            None => self.plan_root(out),
        };
        self.account(planned)
    }

    /// As [`Generator::next`], but removes one of this client's nodes; nothing where none is left.
    /// Ask again after all answers are in: until they are, some may come back as uncertain.
    pub fn next_cleanup(&mut self, out: &mut [u8]) -> Option<Planned> {
        let slot = own::first(self.own.live())?;
        let planned = self.plan_remove(out, slot)?;
        Some(self.account(planned))
    }

    /// A call has no answer and never will: it may or may not have run. From now on either is
    /// accepted, until another answer settles it.
    ///
    /// When a connection is lost give all of its calls without an answer back before the next call
    /// is planned, those that were not even sent among them.
    pub fn forget(&mut self, expect: &Expect) {
        self.counters.forgotten += 1;
        match expect.0 {
            Expected::Mknod { slot } => self.own.shake(slot),
            Expected::Rmnod { slot } => self.own.revive(slot),
            _ => {}
        }
        self.own.release(expect.slots());
    }

    /// What the generator has done so far.
    #[must_use]
    pub fn counters(&self) -> LoadCounters {
        self.counters
    }

    /// How many of its nodes should be there, or may be, when all calls have run.
    #[must_use]
    pub fn node_count(&self) -> u32 {
        self.own.live().count_ones()
    }

    /// The call in words, for a report of a wrong answer; to be asked before the next call is
    /// planned.
    #[must_use]
    pub fn describe(&self, expect: &Expect) -> String {
        let own = |slot| (self.own.dir(slot), format!("own node {}", self.own.n(slot)));
        let (at, what) = match expect.0 {
            Expected::Stat { node } => (node, String::new()),
            Expected::OwnStat { slot, .. }
            | Expected::Mknod { slot }
            | Expected::Rmnod { slot } => own(slot),
            Expected::Page { dir, cookie, .. } => (dir, format!("from cookie {cookie:#x}")),
            Expected::Refused { near, status, .. } => (near, format!("to be answered '{status}'")),
        };
        let mut path = vec![0; self.tree.path_len(at)];
        self.tree.write_path(at, &mut path);
        format!("{} '/{}' {what}", expect.method(), path.escape_ascii())
            .trim_end()
            .to_owned()
    }

    fn account(&mut self, planned: Planned) -> Planned {
        self.counters.planned[planned.expect.method().index()] += 1;
        self.own.hold(planned.expect.slots());
        planned
    }

    fn plan_stat(&mut self, out: &mut [u8]) -> Option<Planned> {
        match self.rng.random_range(0..16_u32) {
            0 => self.plan_refused(out, Method::Stat),
            1..=3 => self.plan_own_stat(out),
            _ => None,
        }
        .or_else(|| {
            (0..ATTEMPTS).find_map(|_| {
                let index = self.rng.random_range(0..self.tree.entry_count());
                let node = self.tree.entry(index)?;
                let len = self.emit(out, Method::Stat, 0, node, b"")?;
                Some(planned(len, Expected::Stat { node }))
            })
        })
    }

    fn plan_own_stat(&mut self, out: &mut [u8]) -> Option<Planned> {
        let slot = self.random_slot(self.own.used())?;
        let len = self.emit_own(out, Method::Stat, slot)?;
        Some(planned(
            len,
            Expected::OwnStat {
                slot,
                present: self.own.is_live(slot),
            },
        ))
    }

    fn plan_read_dir(&mut self, out: &mut [u8]) -> Option<Planned> {
        if self.rng.random_range(0..32_u32) == 0 {
            return self.plan_refused(out, Method::ReadDir);
        }
        if self.rng.random_range(0..2_u32) == 0 {
            if let Some((dir, cookie)) = self.follow.take() {
                return self.plan_page(out, dir, cookie);
            }
        }
        (0..ATTEMPTS).find_map(|_| {
            let own = match self.rng.random_range(0..4_u32) {
                0 => self.random_slot(self.own.live()),
                _ => None,
            };
            let dir = match own {
                Some(slot) => self.own.dir(slot),
                None => self.random_dir()?,
            };
            let cookie = match self.rng.random_range(0..4_u32) {
                0 => self.rng.random_range(0..=self.tree.child_count(dir)) as u64,
                _ => 0,
            };
            self.plan_page(out, dir, cookie)
        })
    }

    fn plan_page(&mut self, out: &mut [u8], dir: NodeId, cookie: u64) -> Option<Planned> {
        let len = self.emit(out, Method::ReadDir, cookie, dir, b"")?;
        let live = self.own.live_in(dir);
        Some(planned(len, Expected::Page { dir, cookie, live }))
    }

    fn plan_mknod(&mut self, out: &mut [u8]) -> Option<Planned> {
        if self.rng.random_range(0..16_u32) == 0 {
            return self.plan_refused(out, Method::Mknod);
        }
        if !self.own.has_free() {
            return None;
        }
        (0..ATTEMPTS).find_map(|_| {
            let dir = self.random_dir()?;
            let n = self.own.next_n();
            let marker = Marker::node(self.client, n);
            // Nobody keeps a real tree from having such a name.
            if self.tree.child(dir, marker.as_bytes()).is_some() {
                return None;
            }
            let len = self.emit(out, Method::Mknod, 0, dir, marker.as_bytes())?;
            let slot = self.own.create(dir, n)?;
            Some(planned(len, Expected::Mknod { slot }))
        })
    }

    fn plan_rmnod(&mut self, out: &mut [u8]) -> Option<Planned> {
        if self.rng.random_range(0..16_u32) == 0 {
            return self.plan_refused(out, Method::Rmnod);
        }
        let slot = self.random_slot(self.own.live())?;
        self.plan_remove(out, slot)
    }

    fn plan_remove(&mut self, out: &mut [u8], slot: SlotId) -> Option<Planned> {
        let len = self.emit_own(out, Method::Rmnod, slot)?;
        self.own.remove(slot);
        Some(planned(len, Expected::Rmnod { slot }))
    }

    /// A request that must be turned down, whatever other clients do meanwhile.
    fn plan_refused(&mut self, out: &mut [u8], method: Method) -> Option<Planned> {
        let index = self.rng.random_range(0..self.tree.entry_count());
        let near = self.tree.entry(index)?;
        let missing = Marker::missing(self.rng.random());
        let is_dir = self.tree.kind(near) == Kind::Dir;
        let (name, status) = match (method, is_dir) {
            (Method::Mknod, true) => (&b""[..], Status::Exists),
            // Only a broken server would remove a directory; a file, any server would.
            (Method::Rmnod, true) if self.rng.random() => (&b""[..], Status::IsADirectory),
            (_, true) => (missing.as_bytes(), Status::NotFound),
            (Method::ReadDir, false) if self.rng.random() => (&b""[..], Status::NotADirectory),
            (Method::Mknod, false) if self.rng.random() => (&b""[..], Status::Exists),
            (_, false) => (missing.as_bytes(), Status::NotADirectory),
        };
        if is_dir && !name.is_empty() && self.tree.child(near, name).is_some() {
            return None;
        }
        let len = self.emit(out, method, 0, near, name)?;
        Some(planned(
            len,
            Expected::Refused {
                method,
                near,
                status,
            },
        ))
    }

    /// What always fits a buffer of the promised size.
    fn plan_root(&mut self, out: &mut [u8]) -> Planned {
        let node = NodeId::ROOT;
        match self.emit(out, Method::Stat, 0, node, b"") {
            Some(len) => planned(len, Expected::Stat { node }),
            None => {
                let (method, status) = (Method::Stat, Status::BadRequest);
                planned(
                    0,
                    Expected::Refused {
                        method,
                        near: node,
                        status,
                    },
                )
            }
        }
    }

    fn random_dir(&mut self) -> Option<NodeId> {
        let dirs = self.tree.dir_count();
        let among = if self.rng.random() {
            dirs
        } else {
            dirs.min(SHARED_DIRS)
        };
        let index = self.rng.random_range(0..among.max(1));
        self.tree.dir(index)
    }

    fn random_slot(&mut self, slots: u64) -> Option<SlotId> {
        if slots == 0 {
            return None;
        }
        let n = self.rng.random_range(0..slots.count_ones());
        own::nth(slots, n)
    }

    fn emit_own(&mut self, out: &mut [u8], method: Method, slot: SlotId) -> Option<usize> {
        let marker = Marker::node(self.client, self.own.n(slot));
        self.emit(out, method, 0, self.own.dir(slot), marker.as_bytes())
    }

    /// Writes a request for `name` below `id`, or for `id` itself where `name` is empty; nothing,
    /// and counted, where it is too long.
    fn emit(
        &mut self,
        out: &mut [u8],
        method: Method,
        cookie: u64,
        id: NodeId,
        name: &[u8],
    ) -> Option<usize> {
        let max = self.request_max.min(out.len());
        let len = self.join(id, name).and_then(|len| {
            let path = &self.path[..len];
            let request = match method {
                Method::Stat => Request::Stat { path },
                Method::ReadDir => Request::ReadDir { cookie, path },
                Method::Mknod => Request::Mknod { path },
                Method::Rmnod => Request::Rmnod { path },
            };
            request.encode(&mut out[..max])
        });
        self.counters.skipped_long += u64::from(len.is_none());
        len
    }

    fn join(&mut self, id: NodeId, name: &[u8]) -> Option<usize> {
        let mut len = self.tree.write_path(id, &mut self.path)?;
        if name.is_empty() {
            return Some(len);
        }
        if len > 0 {
            *self.path.get_mut(len)? = b'/';
            len += 1;
        }
        self.path
            .get_mut(len..len + name.len())?
            .copy_from_slice(name);
        Some(len + name.len())
    }
}

fn planned(len: usize, expected: Expected) -> Planned {
    let expect = Expect(expected);
    Planned {
        method: expect.method() as u16,
        len,
        expect,
    }
}
