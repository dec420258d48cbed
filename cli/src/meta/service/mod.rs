//! The metadata server: answers requests from a [`Tree`], and keeps the nodes clients create.
//!
//! No request allocates, and none fails: whatever the bytes, there is an answer that says what was
//! wrong with them. Only a method that does not exist is refused.

mod created;

use super::tree::{NodeId, Tree};
use super::wire::{self, Attr, Kind, Method, PageWriter, Request, Status, cookie};
use created::{Created, Slot};
use std::sync::Arc;

/// The code of a request for a method that does not exist: the one error of
/// [`MetaService::handle`].
pub const UNKNOWN_METHOD: u16 = 1;

/// The largest limit of created nodes.
pub const NODE_LIMIT_MAX: u32 = cookie::SLOTS_MAX;

/// Why there is no service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServiceError {
    /// Cookies have no room for so many nodes.
    #[error("a limit of {limit} created nodes: at most {NODE_LIMIT_MAX} are possible")]
    NodeLimit {
        /// What was asked for.
        limit: u32,
    },
}

/// What a service has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServiceCounters {
    /// Requests of each method, in the order of [`Method::ALL`].
    pub requests: [u64; Method::ALL.len()],
    /// Of those, the ones answered with [`Status::Ok`].
    pub ok: [u64; Method::ALL.len()],
    /// Of the others, the ones answered with [`Status::BadRequest`].
    pub bad_requests: u64,
    /// Requests for a method that does not exist.
    pub unknown_methods: u64,
}

/// The metadata server. See the [module](self).
#[derive(Debug)]
pub struct MetaService {
    tree: Arc<Tree>,
    created: Created,
    /// A bit for each entry of the tree that `Rmnod` removed.
    removed: Vec<u64>,
    counters: ServiceCounters,
}

/// What is at a path.
enum Found {
    Loaded(NodeId),
    Created(Slot),
    /// Nothing, but its directory is there.
    Vacant(NodeId),
    /// Nothing, for this reason.
    Nowhere(Status),
}

impl MetaService {
    /// A server of `tree` with room for `node_limit` created nodes, all of it allocated here.
    ///
    /// # Errors
    /// Where the limit is above [`NODE_LIMIT_MAX`].
    pub fn new(tree: Arc<Tree>, node_limit: u32) -> Result<Self, ServiceError> {
        if node_limit > NODE_LIMIT_MAX {
            return Err(ServiceError::NodeLimit { limit: node_limit });
        }
        Ok(Self {
            created: Created::new(tree.entry_count(), node_limit),
            removed: vec![0; tree.entry_count().div_ceil(64)],
            tree,
            counters: ServiceCounters::default(),
        })
    }

    /// Answers a request: writes the response to the start of `response`, and says how long it is.
    ///
    /// A response buffer too small for the answer gets [`Status::TooSmall`] (an empty one, an empty
    /// response), and then nothing was created or removed.
    ///
    /// # Errors
    /// [`UNKNOWN_METHOD`], and nothing else.
    pub fn handle(
        &mut self,
        method: u16,
        request: &[u8],
        response: &mut [u8],
    ) -> Result<usize, u16> {
        let Some(method) = Method::from_u16(method) else {
            self.counters.unknown_methods += 1;
            return Err(UNKNOWN_METHOD);
        };
        self.counters.requests[method.index()] += 1;
        let answered = match Request::decode(method, request) {
            Ok(Request::Stat { path }) => self.stat(path, response),
            Ok(Request::ReadDir { cookie, path }) => self.read_dir(path, cookie, response),
            Ok(Request::Mknod { path }) => self.mknod(path, response),
            Ok(Request::Rmnod { path }) => self.rmnod(path, response),
            Err(_malformed) => Err(Status::BadRequest),
        };
        Ok(match answered {
            Ok(len) => {
                self.counters.ok[method.index()] += 1;
                len
            }
            Err(status) => {
                self.counters.bad_requests += u64::from(status == Status::BadRequest);
                wire::encode_status(status, response)
            }
        })
    }

    /// The tree that is served.
    #[must_use]
    pub fn tree(&self) -> &Arc<Tree> {
        &self.tree
    }

    /// How many created nodes there are now.
    #[must_use]
    pub fn node_count(&self) -> usize {
        self.created.live()
    }

    /// How many there may be.
    #[must_use]
    pub fn node_limit(&self) -> usize {
        self.created.limit()
    }

    /// What the service has done so far.
    #[must_use]
    pub fn counters(&self) -> ServiceCounters {
        self.counters
    }

    fn stat(&self, path: &[u8], response: &mut [u8]) -> Result<usize, Status> {
        let attr = match self.find(path) {
            Found::Loaded(id) => self.tree.attr(id),
            Found::Created(slot) => Attr::created(self.created.number(slot)),
            Found::Vacant(_) => return Err(Status::NotFound),
            Found::Nowhere(reason) => return Err(reason),
        };
        wire::encode_attr(&attr, response).ok_or(Status::TooSmall)
    }

    fn read_dir(&self, path: &[u8], from: u64, response: &mut [u8]) -> Result<usize, Status> {
        let dir = match self.find(path) {
            Found::Loaded(id) if self.tree.kind(id) == Kind::Dir => id,
            Found::Loaded(_) | Found::Created(_) => return Err(Status::NotADirectory),
            Found::Vacant(_) => return Err(Status::NotFound),
            Found::Nowhere(reason) => return Err(reason),
        };
        let mut page = PageWriter::new(response).ok_or(Status::TooSmall)?;
        let mut created = match cookie::created(from) {
            Some((slot, number)) => self.created.resume(dir, slot, number),
            None => {
                let children = self.tree.child_count(dir);
                let start = usize::try_from(from)
                    .ok()
                    .filter(|start| *start <= children);
                for index in start.ok_or(Status::BadRequest)?..children {
                    let child = self
                        .tree
                        .child_at(dir, index)
                        .filter(|id| self.is_there(*id));
                    let Some(child) = child else { continue };
                    if !page.push(self.tree.kind(child), self.tree.name(child)) {
                        return finish(page, index as u64);
                    }
                }
                self.created.first(dir)
            }
        };
        // Of a page with nothing on it `next` does not count.
        let mut next = self.tree.child_count(dir) as u64;
        while let Some(slot) = created {
            if !page.push(Kind::File, self.created.name(slot)) {
                return finish(page, next);
            }
            next = self.created.cookie_after(slot);
            created = self.created.next(slot);
        }
        Ok(page.finish(0))
    }

    fn mknod(&mut self, path: &[u8], response: &mut [u8]) -> Result<usize, Status> {
        let dir = match self.find(path) {
            Found::Vacant(dir) => dir,
            Found::Loaded(_) | Found::Created(_) => return Err(Status::Exists),
            Found::Nowhere(reason) => return Err(reason),
        };
        if response.len() < wire::NUMBER_RESPONSE_LEN {
            return Err(Status::TooSmall);
        }
        let number = self
            .created
            .insert(dir, split(path).1)
            .ok_or(Status::NoSpace)?;
        wire::encode_number(number, response).ok_or(Status::TooSmall)
    }

    fn rmnod(&mut self, path: &[u8], response: &mut [u8]) -> Result<usize, Status> {
        let number = match self.find(path) {
            Found::Loaded(id) if self.tree.kind(id) == Kind::Dir => {
                return Err(Status::IsADirectory);
            }
            Found::Loaded(_) | Found::Created(_) if response.len() < wire::NUMBER_RESPONSE_LEN => {
                return Err(Status::TooSmall);
            }
            Found::Loaded(id) => {
                self.removed[id.index() / 64] |= 1 << (id.index() % 64);
                0
            }
            Found::Created(slot) => self.created.remove(slot),
            Found::Vacant(_) => return Err(Status::NotFound),
            Found::Nowhere(reason) => return Err(reason),
        };
        wire::encode_number(number, response).ok_or(Status::TooSmall)
    }

    fn is_there(&self, id: NodeId) -> bool {
        self.removed[id.index() / 64] >> (id.index() % 64) & 1 == 0
    }

    /// One probe of the tree's hash table where the path was loaded, two and one of the created
    /// nodes' where it is not but its directory is.
    fn find(&self, path: &[u8]) -> Found {
        if let Some(id) = self.tree.lookup(path).filter(|id| self.is_there(*id)) {
            return Found::Loaded(id);
        }
        let (parent, name) = split(path);
        match self.tree.lookup(parent) {
            Some(dir) if self.tree.kind(dir) == Kind::Dir => match self.created.find(dir, name) {
                Some(slot) => Found::Created(slot),
                None => Found::Vacant(dir),
            },
            _ => Found::Nowhere(self.reason(parent)),
        }
    }

    /// Why nothing can be at a path below `path`, which is no directory: walks down to where it
    /// ends.
    fn reason(&self, path: &[u8]) -> Status {
        let mut dir = NodeId::ROOT;
        for name in path.split(|byte| *byte == b'/') {
            match self.tree.child(dir, name).filter(|id| self.is_there(*id)) {
                Some(id) if self.tree.kind(id) == Kind::Dir => dir = id,
                Some(_) => return Status::NotADirectory,
                None if self.created.find(dir, name).is_some() => return Status::NotADirectory,
                None => return Status::NotFound,
            }
        }
        Status::NotFound
    }
}

/// A page that does not hold all that is left must hold something, or a client would never get on.
fn finish(page: PageWriter<'_>, next: u64) -> Result<usize, Status> {
    if page.count() == 0 {
        Err(Status::TooSmall)
    } else {
        Ok(page.finish(next))
    }
}

/// The directory's path and the name in it.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (b"", path),
    }
}
