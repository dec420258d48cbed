//! A directory tree that is on no disk, so that every machine has the same.

use std::ffi::OsString;
use std::io;
use std::path::Path;

use scalerpc_cli::meta::tree::Source;
use scalerpc_cli::meta::wire::{Attr, Kind};

/// Directories in the root, and files in each.
const DIRS: u32 = 64;
const FILES: u32 = 32;

/// See the [module](self).
pub(super) struct Synthetic;

impl Synthetic {
    fn attr(kind: Kind, ino: u64) -> Attr {
        Attr {
            kind,
            mode: 0o644,
            uid: 0,
            gid: 0,
            size: 4096 * ino,
            mtime_ns: 0,
            ino,
            number: 0,
        }
    }
}

impl Source for Synthetic {
    fn root(&mut self, _: &Path) -> io::Result<Attr> {
        Ok(Self::attr(Kind::Dir, 1))
    }

    fn list(&mut self, dir: &Path) -> io::Result<Vec<io::Result<OsString>>> {
        let (name, count) = match dir.components().count() {
            0 => ("dir", DIRS),
            _ => ("file", FILES),
        };
        Ok((0..count)
            .map(|i| Ok(format!("{name}-{i:02}").into()))
            .collect())
    }

    fn stat(&mut self, path: &Path) -> io::Result<Attr> {
        let (mut ino, mut kind) = (1, Kind::Dir);
        for name in path.iter() {
            let (word, number) = name
                .to_str()
                .and_then(|name| name.split_once('-'))
                .ok_or(io::ErrorKind::NotFound)?;
            let number: u64 = number.parse().map_err(io::Error::other)?;
            ino = 100 * ino + number;
            kind = if word == "dir" { Kind::Dir } else { Kind::File };
        }
        Ok(Self::attr(kind, ino))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::path::Path;

    use scalerpc_cli::meta::tree::Tree;

    use super::{DIRS, FILES, Synthetic};

    #[test]
    fn every_directory_has_its_files() {
        let (tree, report) = Tree::load_from(&mut Synthetic, Path::new(""), None).unwrap();
        assert_eq!(report.skipped, 0);
        assert_eq!(tree.dir_count() as u32, 1 + DIRS);
        assert_eq!(tree.entry_count() as u32, 1 + DIRS + DIRS * FILES);
        let file = tree.lookup(b"dir-63/file-31").unwrap();
        assert_eq!(tree.attr(file).ino, 16_331);
    }
}
