//! Loading trees, from disk and from a source with faults.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod common;

use common::{Memory, all, mixed, odd_names, path_of};
use scalerpc_cli::meta::tree::{FileSystem, NodeId, Source, Tree, TreeError};
use scalerpc_cli::meta::wire::{Attr, Kind};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Everything that must hold of any tree.
fn assert_consistent(tree: &Tree) {
    for id in all(tree) {
        let path = path_of(tree, id);
        assert_eq!(tree.lookup(&path), Some(id), "{}", path.escape_ascii());
        let names: Vec<&[u8]> = tree.children(id).map(|child| tree.name(child)).collect();
        assert!(names.is_sorted_by(|a, b| a < b));
        assert_eq!(names.len(), tree.child_count(id));
        for (index, child) in tree.children(id).enumerate() {
            assert_eq!(tree.parent(child), Some(id));
            assert_eq!(tree.child_at(id, index), Some(child));
            assert_eq!(tree.child(id, tree.name(child)), Some(child));
        }
        assert_eq!(tree.child_at(id, names.len()), None);
        assert!(names.is_empty() || tree.kind(id) == Kind::Dir);
        let too_short = path.len().saturating_sub(1);
        if !path.is_empty() {
            assert_eq!(tree.write_path(id, &mut vec![0; too_short]), None);
        }
    }
    let dirs = all(tree).filter(|id| tree.kind(*id) == Kind::Dir);
    assert!(dirs.eq((0..tree.dir_count()).map(|index| tree.dir(index).unwrap())));
}

#[test]
fn a_tree_on_disk_is_loaded_exactly() {
    let dir = tempfile::tempdir().unwrap();
    for (n, name) in odd_names().iter().enumerate() {
        let path = dir.path().join(OsStr::from_bytes(name));
        match n % 3 {
            0 => {
                fs::create_dir(&path).unwrap();
                fs::write(path.join(OsStr::from_bytes(name)), b"12345").unwrap();
            }
            1 => fs::write(&path, vec![0; n]).unwrap(),
            // One that leads nowhere: it must not be followed.
            _ => symlink("/nowhere/at/all", &path).unwrap(),
        }
    }
    symlink(dir.path(), dir.path().join("loop")).unwrap();
    let (tree, report) = Tree::load(dir.path(), None).unwrap();
    assert_eq!((report.skipped, report.truncated), (0, false));
    assert_eq!(report.entries, tree.entry_count());
    assert_eq!((report.entries, report.dirs), (1 + 15 + 5 + 1, 1 + 5));
    assert_consistent(&tree);
    for id in all(&tree) {
        let path = dir.path().join(OsStr::from_bytes(&path_of(&tree, id)));
        let metadata = fs::symlink_metadata(&path).unwrap();
        let attr = tree.attr(id);
        assert_eq!(attr.size, metadata.size());
        assert_eq!(
            attr.mtime_ns,
            metadata.mtime() * 1_000_000_000 + metadata.mtime_nsec()
        );
        assert_eq!((attr.mode, attr.ino), (metadata.mode(), metadata.ino()));
        assert_eq!((attr.uid, attr.gid), (metadata.uid(), metadata.gid()));
        assert_eq!(attr.kind == Kind::Symlink, metadata.is_symlink());
        assert_eq!(attr.kind == Kind::File, metadata.is_file());
    }
}

#[test]
fn a_system_directory_is_loaded() {
    let (tree, report) = Tree::load(Path::new("/usr"), Some(20_000)).unwrap();
    assert!(report.entries > 100);
    assert!(tree.memory_bytes() < 256 * tree.entry_count() + 4096);
    assert_consistent(&tree);
}

#[test]
fn the_root_must_be_a_directory_that_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, b"").unwrap();
    let load = |path: &Path| Tree::load(path, None);
    assert!(matches!(load(&file), Err(TreeError::NotADirectory { dir }) if dir == file));
    let below = file.join("x");
    assert!(matches!(load(&below), Err(TreeError::NotADirectory { dir }) if dir == below));
    let missing = dir.path().join("missing");
    assert!(matches!(load(&missing), Err(TreeError::NotFound { dir }) if dir == missing));
    let mut locked = Memory::new();
    locked.locked.insert(PathBuf::new());
    let error = Tree::load_from(&mut locked, Path::new(""), None).unwrap_err();
    assert!(matches!(error, TreeError::Unreadable { .. }));
    // The directory asked for may be given by a link.
    let link = dir.path().join("link");
    symlink(dir.path(), &link).unwrap();
    assert_eq!(load(&link).unwrap().1.entries, 3);
}

#[test]
fn an_empty_directory_is_a_tree() {
    let dir = tempfile::tempdir().unwrap();
    for limit in [None, Some(0), Some(1)] {
        let (tree, report) = Tree::load(dir.path(), limit).unwrap();
        assert_eq!(
            (report.entries, report.dirs, report.truncated),
            (1, 1, false)
        );
        assert_eq!(tree.lookup(b""), Some(NodeId::ROOT));
        assert_eq!(tree.lookup(b"x"), None);
        assert_consistent(&tree);
    }
}

#[test]
fn what_cannot_be_read_is_left_out_and_named() {
    let mut memory = mixed();
    memory.locked.insert("deep/level-0".into());
    memory.broken.insert("big".into());
    memory
        .vanished
        .extend((10..20).map(|n| PathBuf::from(format!("big/entry-{n}"))));
    let (tree, report) = Tree::load_from(&mut memory, Path::new(""), None).unwrap();
    assert_eq!(report.skipped, 1 + 1 + 10);
    assert_eq!(report.skipped_examples.len(), 8);
    assert_eq!(
        report.skipped_examples[0],
        ("big".into(), "device gone".to_owned())
    );
    assert_eq!(report.skipped_examples[1].0, PathBuf::from("big/entry-10"));
    assert!(!report.truncated);
    assert_consistent(&tree);
    let locked = tree.lookup(b"deep/level-0").unwrap();
    assert_eq!(
        (tree.kind(locked), tree.child_count(locked)),
        (Kind::Dir, 0)
    );
    assert_eq!(tree.lookup(b"big/entry-10"), None);
    assert_eq!(tree.child_count(tree.lookup(b"big").unwrap()), 290);
}

/// Removes files of a real directory between listing and asking for them.
struct Removing(FileSystem);

impl Source for Removing {
    fn root(&mut self, dir: &Path) -> io::Result<Attr> {
        self.0.root(dir)
    }

    fn list(&mut self, dir: &Path) -> io::Result<Vec<io::Result<OsString>>> {
        let names = self.0.list(dir)?;
        if dir.join("first").exists() {
            fs::remove_file(dir.join("first"))?;
            fs::remove_dir_all(dir.join("second"))?;
        }
        Ok(names)
    }

    fn stat(&mut self, path: &Path) -> io::Result<Attr> {
        let attr = self.0.stat(path)?;
        if path.ends_with("third") {
            fs::remove_dir(path)?;
        }
        Ok(attr)
    }
}

#[test]
fn what_vanishes_while_loading_is_left_out() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("first"), b"").unwrap();
    fs::create_dir(dir.path().join("second")).unwrap();
    fs::create_dir(dir.path().join("third")).unwrap();
    fs::write(dir.path().join("kept"), b"").unwrap();
    let (tree, report) = Tree::load_from(&mut Removing(FileSystem), dir.path(), None).unwrap();
    let skipped: Vec<_> = report
        .skipped_examples
        .iter()
        .map(|(path, _)| path.clone())
        .collect();
    assert_eq!(
        skipped,
        ["first", "second", "third"].map(|name| dir.path().join(name))
    );
    assert_eq!(report.skipped, 3);
    // The third was seen before it went, and so is an empty directory.
    let names: Vec<_> = tree
        .children(NodeId::ROOT)
        .map(|id| tree.name(id))
        .collect();
    assert_eq!(names, [&b"kept"[..], b"third"]);
}

#[test]
fn names_that_no_request_can_carry_are_left_out() {
    let mut memory = Memory::new();
    memory.add("a".repeat(256), Kind::File);
    memory.add("a".repeat(255), Kind::File);
    let (tree, report) = Tree::load_from(&mut memory, Path::new(""), None).unwrap();
    assert_eq!((tree.entry_count(), report.skipped), (2, 1));
}

#[test]
fn a_limit_keeps_the_upper_levels() {
    let mut memory = mixed();
    let whole = memory.load();
    for limit in 1..=whole.entry_count() {
        let (tree, report) = Tree::load_from(&mut memory, Path::new(""), Some(limit)).unwrap();
        assert_eq!((tree.entry_count(), report.entries), (limit, limit));
        assert!(report.truncated || limit == whole.entry_count());
        for (part, id) in all(&tree).zip(all(&whole)) {
            assert_eq!(path_of(&tree, part), path_of(&whole, id));
        }
    }
    assert_consistent(&whole);
}

#[test]
fn lookup_finds_only_whole_valid_paths() {
    let tree = mixed().load();
    for path in [
        "/",
        "big/",
        "/big",
        "big//entry-1",
        "bi",
        "bigg",
        "big/.",
        "big/../big",
        "./big",
    ] {
        assert_eq!(tree.lookup(path.as_bytes()), None, "{path}");
    }
    assert!(tree.lookup(b"big/entry-1").is_some());
}

#[test]
fn the_fingerprint_sees_every_difference() {
    let base = mixed().load().fingerprint();
    assert_eq!(base, mixed().load().fingerprint());
    let changed = |change: &dyn Fn(&mut Attr)| {
        let mut memory = mixed();
        change(memory.nodes.get_mut(Path::new("big/entry-7")).unwrap());
        memory.load().fingerprint()
    };
    let changes: [&dyn Fn(&mut Attr); 7] = [
        &|attr| attr.kind = Kind::Other,
        &|attr| attr.mode += 1,
        &|attr| attr.uid += 1,
        &|attr| attr.gid += 1,
        &|attr| attr.size += 1,
        &|attr| attr.mtime_ns += 1,
        &|attr| attr.ino += 1,
    ];
    for change in changes {
        assert_ne!(base, changed(change));
    }
    let mut renamed = mixed();
    let attr = renamed.nodes.remove(Path::new("big/entry-7")).unwrap();
    renamed.nodes.insert("big/entry-7x".into(), attr);
    assert_ne!(base, renamed.load().fingerprint());
}
