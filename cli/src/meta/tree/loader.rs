//! Loads a tree from its source.

use super::{Entry, LoadReport, NodeId, SKIPPED_EXAMPLES_MAX, Source, Tree, TreeError};
use crate::meta::wire::{self, Attr, Kind};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// A tree that is being loaded.
pub(super) struct Loader<'a> {
    root: &'a Path,
    limit: usize,
    pub(super) tree: Tree,
    pub(super) report: LoadReport,
}

impl<'a> Loader<'a> {
    pub(super) fn new(root: &'a Path, limit: Option<usize>) -> Self {
        Self {
            root,
            limit: limit.unwrap_or(usize::MAX),
            tree: Tree {
                entries: Vec::new(),
                names: Vec::new(),
                dirs: Vec::new(),
                places: Vec::new(),
                name_len_max: 0,
                fingerprint: 0,
            },
            report: LoadReport::default(),
        }
    }

    /// Level by level: so the children of a directory lie one after the other.
    pub(super) fn run(&mut self, source: &mut dyn Source) -> Result<(), TreeError> {
        let attr = source
            .root(self.root)
            .map_err(|error| self.root_error(error))?;
        if attr.kind != Kind::Dir {
            return Err(TreeError::NotADirectory {
                dir: self.root.to_owned(),
            });
        }
        self.push(NodeId::ROOT, b"", 0, &attr)?;
        let names = source
            .list(self.root)
            .map_err(|error| self.root_error(error))?;
        self.add_children(source, NodeId::ROOT, self.root, names)?;
        let mut index = 1;
        while let Some(id) = self.tree.entry(index) {
            index += 1;
            if self.tree.kind(id) != Kind::Dir {
                continue;
            }
            if self.tree.entries.len() >= self.limit {
                self.report.truncated = true;
                return Ok(());
            }
            let path = self.path(id);
            match source.list(&path) {
                Ok(names) => self.add_children(source, id, &path, names)?,
                Err(error) => self.skip(path, &error),
            }
        }
        Ok(())
    }

    fn add_children(
        &mut self,
        source: &mut dyn Source,
        parent: NodeId,
        dir: &Path,
        listed: Vec<io::Result<OsString>>,
    ) -> Result<(), TreeError> {
        let mut names = Vec::with_capacity(listed.len());
        for name in listed {
            match name {
                Ok(name) => names.push(name.into_vec()),
                Err(error) => self.skip(dir.to_owned(), &error),
            }
        }
        names.sort_unstable();
        // A directory that changes while it is read may list a name twice.
        names.dedup();
        let first = self.tree.entries.len();
        for name in names {
            if self.tree.entries.len() >= self.limit {
                self.report.truncated = true;
                break;
            }
            let path = dir.join(OsStr::from_bytes(&name));
            let above = self.tree.path_len(parent);
            let path_len = above + usize::from(above > 0) + name.len();
            match (wire::name_is_valid(&name), u16::try_from(path_len)) {
                (true, Ok(path_len)) => match source.stat(&path) {
                    Ok(attr) => self.push(parent, &name, path_len, &attr)?,
                    Err(error) => self.skip(path, &error),
                },
                _ => self.skip(path, &"the name or path cannot be put into a request"),
            }
        }
        let added = self.tree.entries.len() - first;
        let entry = &mut self.tree.entries[parent.index()];
        // Both fit: `push` has refused more entries than that.
        entry.first_child = first as u32;
        entry.child_count = added as u32;
        Ok(())
    }

    fn push(
        &mut self,
        parent: NodeId,
        name: &[u8],
        path_len: u16,
        attr: &Attr,
    ) -> Result<(), TreeError> {
        let (index, name_bytes) = (self.tree.entries.len(), self.tree.names.len());
        let mut piece = Vec::new();
        let mut dir_start = self
            .tree
            .entries
            .get(parent.index())
            .map_or(0, |dir| dir.dir_start);
        if attr.kind == Kind::Dir {
            piece.resize(usize::from(path_len) - name.len(), b'/');
            // Leaves the last '/' where it is.
            if !piece.is_empty() {
                self.tree.write_path(parent, &mut piece);
            }
            // Checked with the start of the name, which is not before it.
            dir_start = name_bytes as u32;
        }
        piece.extend_from_slice(name);
        let name_start = u32::try_from(name_bytes + piece.len() - name.len());
        let (Ok(_), Ok(name_start)) = (u32::try_from(index + 1), name_start) else {
            let dir = self.root.to_owned();
            return Err(TreeError::TooLarge {
                dir,
                entries: index,
                name_bytes,
            });
        };
        self.tree.names.append(&mut piece);
        self.tree.entries.push(Entry {
            size: attr.size,
            mtime_ns: attr.mtime_ns,
            ino: attr.ino,
            mode: attr.mode,
            uid: attr.uid,
            gid: attr.gid,
            parent: parent.0,
            name_start,
            dir_start,
            first_child: 0,
            child_count: 0,
            path_len,
            // A valid name has at most 255 bytes.
            name_len: name.len() as u8,
            kind: attr.kind,
        });
        Ok(())
    }

    fn path(&self, id: NodeId) -> PathBuf {
        let mut relative = vec![0; self.tree.path_len(id)];
        self.tree.write_path(id, &mut relative);
        self.root.join(OsStr::from_bytes(&relative))
    }

    fn skip(&mut self, path: PathBuf, reason: &dyn ToString) {
        self.report.skipped += 1;
        if self.report.skipped_examples.len() < SKIPPED_EXAMPLES_MAX {
            self.report
                .skipped_examples
                .push((path, reason.to_string()));
        }
    }

    fn root_error(&self, error: io::Error) -> TreeError {
        let dir = self.root.to_owned();
        match error.kind() {
            io::ErrorKind::NotFound => TreeError::NotFound { dir },
            io::ErrorKind::NotADirectory => TreeError::NotADirectory { dir },
            _ => TreeError::Unreadable { dir, error },
        }
    }
}
