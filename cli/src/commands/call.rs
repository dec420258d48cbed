//! `scalerpc call`: one call to a running server.

use std::ffi::OsString;

use clap::Args;
use scalerpc::{CallError, Status as CallStatus};
use scalerpc_cli::meta::wire::{self, Attr, Kind, Method, Request};
use serde_json::{Value, json};

use super::{Outcome, Verdict};
use crate::output::{Output, note, readable};
use crate::place::{Calls, PlaceArgs};
use crate::remote::{Refused, Remote, normalised};
use crate::report::{date, grouped};

/// Make one call to a running server, and print the answer
///
/// A PATH is relative to the root of the tree that the server serves, with or without a slash in front:
/// of a server of /usr, `stat bin` is about /usr/bin, and `readdir /` lists /usr.
#[derive(Args, Clone, Debug)]
#[command(after_help = CALL_HELP)]
pub(crate) struct Call {
    #[command(flatten)]
    place: PlaceArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Bytes of the request of a method that is given by its number, as hexadecimal digits
    #[arg(long, value_name = "DIGITS", conflicts_with = "text")]
    hex: Option<String>,
    /// The same, as text
    #[arg(long, value_name = "TEXT")]
    text: Option<OsString>,
    /// stat, readdir, mknod or rmnod; or the number of any method (0 to 65535)
    #[arg(value_name = "METHOD")]
    method: OsString,
    /// The path that it is about
    #[arg(value_name = "PATH", allow_hyphen_values = true)]
    path: Option<OsString>,
}

const CALL_HELP: &str = "\
Methods:
  stat PATH     attributes of an entry
  readdir PATH  all entries of a directory
  mknod PATH    create an empty file, in the server's memory only
  rmnod PATH    remove what is not a directory, in the server's memory only
  NUMBER        any method, known or not; --hex or --text is its request

Examples:
  scalerpc call --socket /tmp/meta.sock stat bin/env
  scalerpc call --socket /tmp/meta.sock --json readdir share/doc
  scalerpc call --socket /tmp/meta.sock 77 --text hello

Exit codes:
  0  the answer was printed
  1  the answer is no, such as 'not found', or there was none
  2  bad usage, or there is no server";

/// Why there is nothing to print.
enum Problem {
    /// Exit code 1.
    No(String),
    /// Exit code 2.
    Usage(String),
}

/// An answer, for people and for programs.
struct Answer {
    lines: Vec<String>,
    json: Value,
}

impl Call {
    pub(crate) fn run(&self) -> Outcome {
        let answer = match self.parse()? {
            Parsed::Known(method, path) => self.known(method, &path),
            Parsed::Raw(number, request) => self.raw(number, &request),
        };
        match answer {
            Ok(answer) => {
                let mut output = Output::new();
                if self.json {
                    output.line(answer.json.to_string());
                } else {
                    answer.lines.iter().for_each(|line| output.line(line));
                }
                let wrote = output.finish();
                if let Err(error) = &wrote {
                    note(format_args!(
                        "scalerpc: the answer could not be written: {error}"
                    ));
                }
                Ok(Verdict::good_if(wrote.is_ok()))
            }
            Err(Problem::No(why)) => {
                note(format_args!("scalerpc: {why}"));
                Ok(Verdict::Bad)
            }
            Err(Problem::Usage(why)) => Err(why),
        }
    }

    fn parse(&self) -> Result<Parsed, String> {
        let name = self.method.to_str().unwrap_or_default();
        let method = Method::ALL.into_iter().find(|method| method.name() == name);
        let raw = self.hex.is_some() || self.text.is_some();
        match (method, name.parse::<u16>(), &self.path) {
            (Some(method), _, Some(path)) if !raw => Ok(Parsed::Known(method, normalised(path))),
            (Some(_), _, None) if !raw => Err(format!("{name}: a PATH is missing")),
            (Some(_), ..) => Err(format!(
                "{name} takes a PATH; --hex and --text are for methods that are given by number"
            )),
            (None, Ok(number), None) => Ok(Parsed::Raw(number, self.payload()?)),
            (None, Ok(number), Some(_)) => Err(format!(
                "method {number}: give the bytes of the request with --hex or --text, not as a PATH"
            )),
            (None, Err(_), _) => Err(format!(
                "there is no method '{}': use stat, readdir, mknod or rmnod, or a number from 0 to \
                 65535",
                readable(self.method.as_encoded_bytes())
            )),
        }
    }

    fn payload(&self) -> Result<Vec<u8>, String> {
        match (&self.hex, &self.text) {
            (Some(hex), _) => from_hex(hex)
                .ok_or_else(|| format!("--hex {hex}: must be pairs of hexadecimal digits")),
            (None, Some(text)) => Ok(text.as_encoded_bytes().to_vec()),
            (None, None) => Ok(Vec::new()),
        }
    }

    fn connect(&self) -> Result<Box<dyn Calls>, Problem> {
        self.place.place().client().map_err(Problem::Usage)
    }

    fn known(&self, method: Method, path: &[u8]) -> Result<Answer, Problem> {
        let mut remote = Remote::new(self.connect()?);
        let shown = format!("/{}", readable(path));
        let answer = match method {
            Method::Stat => remote.stat(path).map(|attr| stat_answer(&shown, &attr)),
            Method::ReadDir => read_dir_answer(&mut remote, &shown, path),
            Method::Mknod => number(&mut remote, Request::Mknod { path })
                .map(|number| changed(&shown, "created", number)),
            Method::Rmnod => number(&mut remote, Request::Rmnod { path })
                .map(|number| changed(&shown, "removed", number)),
        };
        answer.map_err(|why| match why {
            Refused::TooLong { .. } => Problem::Usage(format!("{method} {shown}: {why}")),
            why => Problem::No(format!("{method} {shown}: {why}")),
        })
    }

    fn raw(&self, number: u16, request: &[u8]) -> Result<Answer, Problem> {
        let mut client = self.connect()?;
        match client.call(number, request) {
            Ok(bytes) => Ok(Answer {
                lines: vec![format!("{} bytes", bytes.len()), to_hex(bytes)],
                json: json!({"method": number, "bytes": bytes.len(), "hex": to_hex(bytes)}),
            }),
            Err(CallError::Status(CallStatus::UNKNOWN_METHOD)) => Err(Problem::No(format!(
                "method {number}: {}; it has {}",
                CallStatus::UNKNOWN_METHOD,
                Method::ALL
                    .map(|method| format!("{} ({})", method as u16, method.name()))
                    .join(", "),
            ))),
            Err(error @ CallError::TooLarge { .. }) => {
                Err(Problem::Usage(format!("method {number}: {error}")))
            }
            Err(error) => Err(Problem::No(format!("method {number}: {error}"))),
        }
    }
}

/// What the command line asks for.
enum Parsed {
    Known(Method, Vec<u8>),
    Raw(u16, Vec<u8>),
}

fn number(remote: &mut Remote, request: Request<'_>) -> Result<u64, Refused> {
    let answer = remote.call(request)?;
    Ok(wire::decode_number(answer)??)
}

fn changed(shown: &str, what: &str, number: u64) -> Answer {
    let line = match number {
        0 => format!("{shown}: {what}"),
        number => format!("{shown}: {what}, node {number}"),
    };
    Answer {
        lines: vec![line],
        json: json!({"path": shown, "done": what, "number": number}),
    }
}

fn read_dir_answer(remote: &mut Remote, shown: &str, path: &[u8]) -> Result<Answer, Refused> {
    let mut lines = Vec::new();
    let mut entries = Vec::new();
    remote.read_dir(path, &mut |kind, name| {
        lines.push(format!("{} {}", letter(kind), readable(name)));
        entries.push(json!({"kind": kind.to_string(), "name": readable(name)}));
    })?;
    Ok(Answer {
        lines,
        json: json!({"path": shown, "entries": entries}),
    })
}

fn stat_answer(shown: &str, attr: &Attr) -> Answer {
    let Attr {
        kind,
        mode,
        uid,
        gid,
        size,
        mtime_ns,
        ino,
        number,
    } = *attr;
    let mode = mode & 0o7777;
    let mut lines = vec![
        format!("path      {shown}"),
        format!("kind      {kind}"),
        format!("mode      {mode:04o}"),
        format!("owner     {uid}:{gid}"),
        format!("size      {} bytes", grouped(size)),
        format!("modified  {}", date(mtime_ns)),
        format!("inode     {ino}"),
    ];
    if number != 0 {
        lines.push(format!("node      {number}, created by a client"));
    }
    Answer {
        lines,
        json: json!({
            "path": shown, "kind": kind.to_string(), "mode": mode, "uid": uid, "gid": gid,
            "size": size, "mtime_ns": mtime_ns, "ino": ino, "number": number,
        }),
    }
}

/// As in the first column of `ls -l`.
fn letter(kind: Kind) -> char {
    match kind {
        Kind::Dir => 'd',
        Kind::File => '-',
        Kind::Symlink => 'l',
        Kind::Other => '?',
    }
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = text
        .chars()
        .map(|char| char.to_digit(16).map(|digit| digit as u8))
        .collect();
    let digits = digits?;
    let pairs = digits.chunks_exact(2);
    pairs
        .remainder()
        .is_empty()
        .then(|| pairs.map(|pair| pair[0] << 4 | pair[1]).collect())
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_there_and_back() {
        assert_eq!(from_hex("00fF7a"), Some(vec![0, 255, 0x7a]));
        assert_eq!(to_hex(&[0, 255, 0x7a]), "00ff7a");
        assert_eq!(from_hex(""), Some(vec![]));
        assert_eq!(from_hex("0"), None);
        assert_eq!(from_hex("0g"), None);
    }
}
