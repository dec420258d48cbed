//! A directory tree that is not on a disk, and faults in it.
#![allow(dead_code, reason = "every test crate uses its own part")]

use scalerpc_cli::meta::load::{Generator, Mix};
use scalerpc_cli::meta::tree::{NodeId, Source, Tree};
use scalerpc_cli::meta::wire::{Attr, Kind};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A file system in memory; paths are relative to its root.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    pub nodes: BTreeMap<PathBuf, Attr>,
    /// Listed, but gone when asked for.
    pub vanished: BTreeSet<PathBuf>,
    /// Directories that may not be read.
    pub locked: BTreeSet<PathBuf>,
    /// Directories whose listing breaks off with an error.
    pub broken: BTreeSet<PathBuf>,
}

impl Memory {
    pub fn new() -> Self {
        let mut memory = Self::default();
        memory.nodes.insert(PathBuf::new(), attr(Kind::Dir, 0));
        memory
    }

    /// Adds an entry, with attributes that differ from those of all others.
    pub fn add(&mut self, path: impl AsRef<OsStr>, kind: Kind) -> &mut Self {
        let attr = attr(kind, self.nodes.len() as u64);
        self.nodes.insert(PathBuf::from(path.as_ref()), attr);
        self
    }

    pub fn load(&mut self) -> Tree {
        let (tree, report) = Tree::load_from(self, Path::new(""), None).unwrap();
        assert_eq!((report.skipped, report.truncated), (0, false));
        assert_eq!(tree.entry_count(), self.nodes.len());
        tree
    }
}

pub fn attr(kind: Kind, n: u64) -> Attr {
    Attr {
        kind,
        mode: 0o755 + n as u32,
        uid: 1000 + n as u32,
        gid: 2000 + n as u32,
        size: n * n,
        mtime_ns: -5 + n as i64,
        ino: 77 + n,
        number: 0,
    }
}

impl Source for Memory {
    fn root(&mut self, dir: &Path) -> io::Result<Attr> {
        self.stat(dir)
    }

    fn list(&mut self, dir: &Path) -> io::Result<Vec<io::Result<OsString>>> {
        if self.locked.contains(dir) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let children = self.nodes.keys().filter(|path| path.parent() == Some(dir));
        // Backwards, since a file system promises no order.
        let names = children.filter_map(|path| path.file_name()).rev();
        let mut names: Vec<_> = names.map(|name| Ok(name.to_owned())).collect();
        if self.broken.contains(dir) {
            // And, as if it had changed meanwhile, an entry that was listed before.
            let last = names.iter().flatten().last().cloned();
            names.push(Err(io::Error::other("device gone")));
            names.extend(last.map(Ok));
        }
        Ok(names)
    }

    fn stat(&mut self, path: &Path) -> io::Result<Attr> {
        if self.vanished.contains(path) {
            return Err(io::ErrorKind::NotFound.into());
        }
        self.nodes
            .get(path)
            .copied()
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

pub fn path_of(tree: &Tree, id: NodeId) -> Vec<u8> {
    let mut path = vec![0; tree.path_len(id)];
    assert_eq!(tree.write_path(id, &mut path), Some(path.len()));
    path
}

pub fn all(tree: &Tree) -> impl Iterator<Item = NodeId> {
    (0..tree.entry_count()).map(|index| tree.entry(index).unwrap())
}

/// Names that have gone wrong somewhere before.
pub fn odd_names() -> Vec<Vec<u8>> {
    let mut names: Vec<Vec<u8>> = [
        &b"a"[..],
        b"b",
        b"ab",
        b"a b",
        b" ",
        b"\n",
        b"...",
        b".hidden",
        b"\xff\xfe",
        b"caf\xc3\xa9",
        b"caf\xe9",
        b"-rf",
        b"\\",
        b"\x01",
    ]
    .map(<[u8]>::to_vec)
    .to_vec();
    names.push(vec![b'x'; 255]);
    names
}

/// A tree of directories of every size from 0 up, odd names, every kind.
pub fn mixed() -> Memory {
    let mut memory = Memory::new();
    for (n, name) in odd_names().iter().enumerate() {
        let kind = [Kind::Dir, Kind::File, Kind::Symlink, Kind::Other][n % 4];
        memory.add(OsStr::from_bytes(name), kind);
    }
    memory.add("big", Kind::Dir);
    for n in 0..300 {
        memory.add(format!("big/entry-{n}"), Kind::File);
    }
    memory.add("deep", Kind::Dir);
    let mut path = "deep".to_owned();
    for n in 0..20 {
        path = format!("{path}/level-{n}");
        memory.add(&path, Kind::Dir);
        memory.add(format!("{path}.file"), Kind::File);
    }
    memory
}

pub const REQUEST_MAX: usize = 600;
pub const RESPONSE_MAX: usize = 600;

pub fn mixed_tree() -> Arc<Tree> {
    Arc::new(mixed().load())
}

pub fn generator(tree: &Arc<Tree>, client: u32, seed: u64) -> Generator {
    let mix = Mix::default();
    Generator::new(
        Arc::clone(tree),
        client,
        seed,
        mix,
        REQUEST_MAX,
        RESPONSE_MAX,
    )
    .unwrap()
}
