//! What a server has run, in a file that outlives it however it ends.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::calls::Name;

/// Bytes of a seat's entry: its last call. A power of two, so that no entry lies in two pages and a kill
/// cannot halve one.
const ENTRY: usize = 32;
const PREFIX: &str = "ran.";

/// A server's ledger.
pub struct Ledger {
    file: File,
}

fn path(dir: &Path, generation: u64) -> PathBuf {
    dir.join(format!("{PREFIX}{generation}"))
}

impl Ledger {
    pub fn create(dir: &Path, generation: u64) -> Self {
        let options = OpenOptions::new().write(true).create_new(true).to_owned();
        let file = options.open(path(dir, generation)).unwrap();
        Self { file }
    }

    /// A call is about to run.
    pub fn enter(&self, seat: u32, name: Name) {
        let mut entry = [0; ENTRY];
        for (to, word) in entry
            .chunks_exact_mut(8)
            .zip([name.client, name.connection, name.number])
        {
            to.copy_from_slice(&word.to_le_bytes());
        }
        let at = u64::from(seat) * ENTRY as u64;
        self.file.write_all_at(&entry, at).unwrap();
    }
}

/// The number of the last call of a connection that any server has run; 0 if none has. The connection must
/// have been up until its server ended: else another one may have its seat.
pub fn last_run(dir: &Path, client: u64, connection: u64) -> u64 {
    let ledgers = std::fs::read_dir(dir).unwrap().filter_map(|entry| {
        let path = entry.unwrap().path();
        let name = path.file_name()?.to_str()?;
        name.starts_with(PREFIX).then(|| path.clone())
    });
    ledgers
        // It may have been removed meanwhile.
        .filter_map(|path| std::fs::read(path).ok())
        .flat_map(|bytes| {
            let names: Vec<_> = bytes.chunks_exact(ENTRY).filter_map(Name::of).collect();
            names
        })
        .filter(|name| (name.client, name.connection) == (client, connection))
        .map(|name| name.number)
        .max()
        .unwrap_or(0)
}

/// Removes the ledger of a server whose clients have all learned of its end, if it is still there.
pub fn remove(dir: &Path, generation: u64) {
    match std::fs::remove_file(path(dir, generation)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => panic!("{error}"),
        _ => {}
    }
}
