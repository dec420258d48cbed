//! A directory tree that is read from a server, call by call.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use scalerpc::CallError;
use scalerpc_cli::meta::tree::{Source, Tree};
use scalerpc_cli::meta::wire::{self, Attr, Malformed, Request, Status};

use crate::output::readable;
use crate::place::Calls;

/// The tree that a server serves. What clients have created there is left out.
pub(crate) struct Remote {
    client: Box<dyn Calls>,
    request: Vec<u8>,
    /// The first created node that is none of a load's own.
    stranger: Option<String>,
}

impl Remote {
    pub(crate) fn new(client: Box<dyn Calls>) -> Self {
        let request = vec![0; client.geometry().request_max_bytes()];
        Self {
            client,
            request,
            stranger: None,
        }
    }

    /// Makes a call, and waits for its answer.
    ///
    /// # Errors
    ///
    /// Where the path does not fit a request, or no answer comes.
    pub(crate) fn call(&mut self, request: Request<'_>) -> Result<&[u8], Refused> {
        let method = request.method() as u16;
        let max = self.request.len();
        let len = request.encode(&mut self.request);
        let len = len.ok_or(Refused::TooLong { max })?;
        Ok(self.client.call(method, &self.request[..len])?)
    }

    /// All pages of a directory: kind and name of each entry.
    ///
    /// # Errors
    ///
    /// Where there is no answer, or no directory.
    pub(crate) fn read_dir(
        &mut self,
        path: &[u8],
        each: &mut dyn FnMut(wire::Kind, &[u8]),
    ) -> Result<(), Refused> {
        let mut cookie = 0;
        loop {
            let answer = self.call(Request::ReadDir { cookie, path })?;
            let page = wire::decode_page(answer)??;
            for (kind, name) in page.entries() {
                each(kind, name);
            }
            cookie = page.next;
            if cookie == 0 {
                return Ok(());
            }
        }
    }

    /// The attributes of a path.
    ///
    /// # Errors
    ///
    /// As [`Remote::read_dir`].
    pub(crate) fn stat(&mut self, path: &[u8]) -> Result<Attr, Refused> {
        let answer = self.call(Request::Stat { path })?;
        Ok(wire::decode_attr(answer)??)
    }
}

/// What a load would not know of, though it changes the server's answers.
impl Remote {
    /// Says in what way the server's tree is not as it was loaded; `None` if it is.
    ///
    /// # Errors
    ///
    /// Where there is no answer.
    pub(crate) fn changed(&mut self, tree: &Tree) -> Result<Option<String>, Refused> {
        if let Some(stranger) = self.stranger.take() {
            return Ok(Some(stranger));
        }
        for dir in (0..tree.dir_count()).filter_map(|index| tree.dir(index)) {
            let mut path = vec![0; tree.path_len(dir)];
            tree.write_path(dir, &mut path);
            // A directory that had more entries when it was loaded knows this cookie.
            let cookie = tree.child_count(dir) as u64 + 1;
            let answer = self.call(Request::ReadDir {
                cookie,
                path: &path,
            })?;
            if wire::decode_page(answer)?.err() != Some(Status::BadRequest) {
                let path = readable(&path);
                return Ok(Some(format!(
                    "entries of /{path} were removed there, or not listed"
                )));
            }
        }
        Ok(None)
    }
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refused {
    /// The call came to no answer.
    #[error("{0}")]
    NoAnswer(#[from] CallError),
    /// The call cannot be made.
    #[error("the path is too long: the server takes requests of at most {max} bytes")]
    TooLong {
        /// Longest request.
        max: usize,
    },
    /// The answer cannot be understood.
    #[error("the answer is malformed: {0}")]
    Malformed(#[from] Malformed),
    /// The answer is no.
    #[error("{0}")]
    Status(Status),
}

impl From<Status> for Refused {
    fn from(status: Status) -> Self {
        Self::Status(status)
    }
}

impl From<Refused> for io::Error {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Status(Status::NotFound) => io::ErrorKind::NotFound.into(),
            Refused::Status(Status::NotADirectory) => io::ErrorKind::NotADirectory.into(),
            other => Self::other(other.to_string()),
        }
    }
}

impl Source for Remote {
    fn root(&mut self, _: &Path) -> io::Result<Attr> {
        Ok(Remote::stat(self, b"")?)
    }

    fn list(&mut self, dir: &Path) -> io::Result<Vec<io::Result<OsString>>> {
        let mut names = Vec::new();
        self.read_dir(dir.as_os_str().as_bytes(), &mut |_, name| {
            names.push(Ok(OsStr::from_bytes(name).to_owned()));
        })?;
        Ok(names)
    }

    fn stat(&mut self, path: &Path) -> io::Result<Attr> {
        let attr = Remote::stat(self, path.as_os_str().as_bytes())?;
        if attr.number != 0 {
            let name = path.file_name().unwrap_or_default().as_bytes();
            if !name.starts_with(b".scalerpc-") && self.stranger.is_none() {
                let path = readable(path.as_os_str().as_bytes());
                self.stranger = Some(format!("/{path} was created there by hand"));
            }
            return Err(io::Error::other(
                "created by a client, not part of the tree",
            ));
        }
        Ok(attr)
    }
}

/// The path as the server knows it: without slashes that mean nothing, and without ".".
pub(crate) fn normalised(path: &OsStr) -> Vec<u8> {
    let parts = path.as_bytes().split(|byte| *byte == b'/');
    let parts: Vec<_> = parts
        .filter(|part| !part.is_empty() && *part != b".")
        .collect();
    parts.join(&b'/')
}
