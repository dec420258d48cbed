//! A directory tree in memory: loaded once from a file system, then only read.

mod loader;

use super::hash;
use super::wire::{self, Attr, Kind};
use loader::Loader;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// How many of the skipped entries a [`LoadReport`] names.
pub const SKIPPED_EXAMPLES_MAX: usize = 8;

/// An entry of one [`Tree`]: its index there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(u32);

impl NodeId {
    /// The tree's root.
    pub const ROOT: Self = Self(0);

    /// The entry's position: entries are numbered from 0 (the root), level by level, the children
    /// of a directory one after the other.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Why there is no tree.
#[derive(Debug, thiserror::Error)]
pub enum TreeError {
    /// The directory is not there.
    #[error("{}: no such directory", .dir.display())]
    NotFound {
        /// What was asked for.
        dir: PathBuf,
    },
    /// It is there, but is not a directory.
    #[error("{}: not a directory", .dir.display())]
    NotADirectory {
        /// What was asked for.
        dir: PathBuf,
    },
    /// It could not be read. (Below it, what cannot be read is skipped and counted.)
    #[error("{}: cannot be read: {error}", .dir.display())]
    Unreadable {
        /// What was asked for.
        dir: PathBuf,
        /// What the system said.
        #[source]
        error: io::Error,
    },
    /// More entries or longer names than 32-bit indices can address; load less, with a limit.
    #[error("{}: too large: {entries} entries with {name_bytes} bytes of names", .dir.display())]
    TooLarge {
        /// What was asked for.
        dir: PathBuf,
        /// How many entries were loaded by then.
        entries: usize,
        /// How long their names were.
        name_bytes: usize,
    },
}

/// What loading a tree came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadReport {
    /// All entries of the tree, the root among them.
    pub entries: usize,
    /// Those that are directories.
    pub dirs: usize,
    /// Entries, or contents of directories, that are missing because they could not be read.
    pub skipped: u64,
    /// The first [`SKIPPED_EXAMPLES_MAX`] of them, each with the reason.
    pub skipped_examples: Vec<(PathBuf, String)>,
    /// Whether the limit cut the tree short.
    pub truncated: bool,
}

/// Where a tree is loaded from; [`FileSystem`] unless a test wants something else.
pub trait Source {
    /// The attributes of the root, symbolic links followed.
    ///
    /// # Errors
    /// Where they cannot be read.
    fn root(&mut self, dir: &Path) -> io::Result<Attr>;

    /// The names in a directory, in any order, without "." and "..".
    ///
    /// # Errors
    /// Where the directory, or (inside) one of its entries, cannot be read.
    fn list(&mut self, dir: &Path) -> io::Result<Vec<io::Result<OsString>>>;

    /// The attributes of an entry, symbolic links not followed.
    ///
    /// # Errors
    /// Where they cannot be read.
    fn stat(&mut self, path: &Path) -> io::Result<Attr>;
}

/// The file system of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct FileSystem;

impl Source for FileSystem {
    fn root(&mut self, dir: &Path) -> io::Result<Attr> {
        fs::metadata(dir).map(|metadata| attr_of(&metadata))
    }

    fn list(&mut self, dir: &Path) -> io::Result<Vec<io::Result<OsString>>> {
        let entries = fs::read_dir(dir)?;
        Ok(entries
            .map(|entry| entry.map(|entry| entry.file_name()))
            .collect())
    }

    fn stat(&mut self, path: &Path) -> io::Result<Attr> {
        fs::symlink_metadata(path).map(|metadata| attr_of(&metadata))
    }
}

fn attr_of(metadata: &fs::Metadata) -> Attr {
    let kind = metadata.file_type();
    Attr {
        kind: if kind.is_dir() {
            Kind::Dir
        } else if kind.is_file() {
            Kind::File
        } else if kind.is_symlink() {
            Kind::Symlink
        } else {
            Kind::Other
        },
        mode: metadata.mode(),
        uid: metadata.uid(),
        gid: metadata.gid(),
        size: metadata.size(),
        mtime_ns: metadata
            .mtime()
            .saturating_mul(1_000_000_000)
            .saturating_add(metadata.mtime_nsec()),
        ino: metadata.ino(),
        number: 0,
    }
}

/// One entry, a cache line of it. Its name is elsewhere; of a directory all of the path is there,
/// and ends with the name: so a path has no more than two pieces, and this line says where.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Entry {
    size: u64,
    mtime_ns: i64,
    ino: u64,
    mode: u32,
    uid: u32,
    gid: u32,
    parent: u32,
    name_start: u32,
    /// Where the path of the directory is: of this one, or of the one that the entry is in.
    dir_start: u32,
    first_child: u32,
    child_count: u32,
    path_len: u16,
    name_len: u8,
    kind: Kind,
}

const _: () = assert!(size_of::<Entry>() == 64);

/// One place of the hash table over all paths; entry 0, the root, is never in it and means vacant.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    tag: u32,
    entry: u32,
}

/// A directory tree in memory. See the [module](self).
#[derive(Debug)]
pub struct Tree {
    entries: Vec<Entry>,
    names: Vec<u8>,
    dirs: Vec<u32>,
    places: Vec<Place>,
    name_len_max: usize,
    fingerprint: u64,
}

impl Tree {
    /// Loads `dir` and all that is below it, other file systems that are mounted there included;
    /// at most `limit` entries, the upper levels first.
    ///
    /// What vanishes or cannot be read meanwhile is left out, and reported.
    ///
    /// # Errors
    /// Where `dir` itself is not there, is not a directory or cannot be read; or is too large.
    pub fn load(dir: &Path, limit: Option<usize>) -> Result<(Self, LoadReport), TreeError> {
        Self::load_from(&mut FileSystem, dir, limit)
    }

    /// As [`Tree::load`], from any source.
    ///
    /// # Errors
    /// As [`Tree::load`].
    pub fn load_from(
        source: &mut dyn Source,
        dir: &Path,
        limit: Option<usize>,
    ) -> Result<(Self, LoadReport), TreeError> {
        let mut loader = Loader::new(dir, limit);
        loader.run(source)?;
        let Loader {
            mut tree,
            mut report,
            ..
        } = loader;
        tree.entries.shrink_to_fit();
        tree.names.shrink_to_fit();
        tree.finish();
        report.entries = tree.entries.len();
        report.dirs = tree.dirs.len();
        Ok((tree, report))
    }

    /// How many entries the tree has: at least one, the root.
    #[must_use]
    pub fn entry_count(&self) -> usize {
        self.entries.len()
    }

    /// How many of them are directories: at least one, the root.
    #[must_use]
    pub fn dir_count(&self) -> usize {
        self.dirs.len()
    }

    /// The entry with this index.
    #[must_use]
    pub fn entry(&self, index: usize) -> Option<NodeId> {
        if index < self.entries.len() {
            u32::try_from(index).ok().map(NodeId)
        } else {
            None
        }
    }

    /// The directory with this index among the directories; the root is the first.
    #[must_use]
    pub fn dir(&self, index: usize) -> Option<NodeId> {
        self.dirs.get(index).copied().map(NodeId)
    }

    /// The name's bytes; empty for the root.
    #[must_use]
    pub fn name(&self, id: NodeId) -> &[u8] {
        let entry = &self.entries[id.index()];
        let start = entry.name_start as usize;
        &self.names[start..start + usize::from(entry.name_len)]
    }

    /// The attributes.
    #[must_use]
    pub fn attr(&self, id: NodeId) -> Attr {
        let entry = &self.entries[id.index()];
        Attr {
            kind: entry.kind,
            mode: entry.mode,
            uid: entry.uid,
            gid: entry.gid,
            size: entry.size,
            mtime_ns: entry.mtime_ns,
            ino: entry.ino,
            number: 0,
        }
    }

    /// What the entry is.
    #[must_use]
    pub fn kind(&self, id: NodeId) -> Kind {
        self.entries[id.index()].kind
    }

    /// The directory that the entry is in; nothing for the root.
    #[must_use]
    pub fn parent(&self, id: NodeId) -> Option<NodeId> {
        (id != NodeId::ROOT).then(|| NodeId(self.entries[id.index()].parent))
    }

    /// How many entries the directory has; 0 for anything else.
    #[must_use]
    pub fn child_count(&self, id: NodeId) -> usize {
        self.entries[id.index()].child_count as usize
    }

    /// The directory's child with this index, in the order of the bytes of the names.
    #[must_use]
    pub fn child_at(&self, id: NodeId, index: usize) -> Option<NodeId> {
        let children = self.children_range(id);
        let index = children.start.checked_add(index)?;
        if index < children.end {
            self.entry(index)
        } else {
            None
        }
    }

    /// The directory's children, in the order of the bytes of the names.
    pub fn children(&self, id: NodeId) -> impl Iterator<Item = NodeId> + use<> {
        let range = self.children_range(id);
        // Indices were checked to fit when the tree was loaded.
        range.map(|index| NodeId(index as u32))
    }

    /// The directory's child with this name.
    #[must_use]
    pub fn child(&self, id: NodeId, name: &[u8]) -> Option<NodeId> {
        let range = self.children_range(id);
        let start = range.start;
        let found = self.entries[range].binary_search_by(|entry| {
            let from = entry.name_start as usize;
            self.names[from..from + usize::from(entry.name_len)].cmp(name)
        });
        self.entry(start + found.ok()?)
    }

    /// The entry at this path (see [`wire`]); a path that is not valid is never found.
    #[must_use]
    pub fn lookup(&self, path: &[u8]) -> Option<NodeId> {
        if path.is_empty() {
            return Some(NodeId::ROOT);
        }
        let hash = hash::bytes(hash::SEED, path);
        let (mut at, tag, mask) = (hash as usize, (hash >> 32) as u32, self.places.len() - 1);
        loop {
            let place = self.places[at & mask];
            if place.entry == 0 {
                return None;
            }
            if place.tag == tag && self.path_is(NodeId(place.entry), path) {
                return Some(NodeId(place.entry));
            }
            at += 1;
        }
    }

    /// The length of the entry's path.
    #[must_use]
    pub fn path_len(&self, id: NodeId) -> usize {
        usize::from(self.entries[id.index()].path_len)
    }

    /// Writes the entry's path to the start of `out`; its length, or nothing where it does not fit.
    pub fn write_path(&self, id: NodeId, out: &mut [u8]) -> Option<usize> {
        let out = out.get_mut(..self.path_len(id))?;
        let (dir, name) = self.path_pieces(id);
        match dir {
            Some(dir) => {
                out[..dir.len()].copy_from_slice(dir);
                out[dir.len()] = b'/';
                out[dir.len() + 1..].copy_from_slice(name);
            }
            None => out.copy_from_slice(name),
        }
        Some(out.len())
    }

    /// The length of the longest name.
    #[must_use]
    pub fn name_len_max(&self) -> usize {
        self.name_len_max
    }

    /// A digest of all names and attributes: trees with different digests differ.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// The memory that the tree occupies, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>()
            + self.names.capacity()
            + self.dirs.capacity() * size_of::<u32>()
            + self.places.capacity() * size_of::<Place>()
    }

    fn children_range(&self, id: NodeId) -> Range<usize> {
        let entry = &self.entries[id.index()];
        let start = entry.first_child as usize;
        start..start + entry.child_count as usize
    }

    /// The path is the second piece, or the first, a '/' and the second.
    fn path_pieces(&self, id: NodeId) -> (Option<&[u8]>, &[u8]) {
        let entry = &self.entries[id.index()];
        let start = entry.dir_start as usize;
        let path_len = usize::from(entry.path_len);
        if entry.kind == Kind::Dir {
            return (None, &self.names[start..start + path_len]);
        }
        let dir_len = (path_len - usize::from(entry.name_len)).checked_sub(1);
        (
            dir_len.map(|len| &self.names[start..start + len]),
            self.name(id),
        )
    }

    fn path_is(&self, id: NodeId, path: &[u8]) -> bool {
        if self.path_len(id) != path.len() {
            return false;
        }
        let (dir, name) = self.path_pieces(id);
        match dir {
            Some(dir) => {
                path[..dir.len()] == *dir
                    && path[dir.len()] == b'/'
                    && path[dir.len() + 1..] == *name
            }
            None => path == name,
        }
    }

    /// Builds what depends on all entries: the directories, the hash table, the digest.
    fn finish(&mut self) {
        let half_full = (self.entries.len() * 2).next_power_of_two();
        self.places = vec![Place::default(); half_full];
        let mask = half_full - 1;
        let mut path = vec![0; usize::from(u16::MAX)];
        let mut encoded = [0; wire::STAT_RESPONSE_LEN];
        let mut fingerprint = 0;
        for index in 0..self.entries.len() {
            // Indices were checked to fit when the entries were added.
            let id = NodeId(index as u32);
            if self.kind(id) == Kind::Dir {
                self.dirs.push(id.0);
            }
            // No path is longer than the buffer, nor are the attributes.
            let len = self.write_path(id, &mut path).unwrap_or(0);
            let hash = hash::bytes(hash::SEED, &path[..len]);
            let len = wire::encode_attr(&self.attr(id), &mut encoded).unwrap_or(0);
            fingerprint = hash::bytes(fingerprint ^ hash, &encoded[..len]);
            self.name_len_max = self.name_len_max.max(self.name(id).len());
            if id != NodeId::ROOT {
                let mut at = hash as usize;
                while self.places[at & mask].entry != 0 {
                    at += 1;
                }
                self.places[at & mask] = Place {
                    tag: (hash >> 32) as u32,
                    entry: id.0,
                };
            }
        }
        self.dirs.shrink_to_fit();
        self.fingerprint = fingerprint;
    }
}
