//! Standard output, and what happens when its reader goes away.
//!
//! A reader that has seen enough (`scalerpc demo | head -1`) is no failure: the rest is dropped, the
//! work goes on, and its exit code stands. Any other error of a write is reported at the end, with
//! exit code 1, since a report that is not there must not look like success.

use std::io::{self, Write};

/// Standard output; see the [module](self).
pub(crate) struct Output {
    to: io::StdoutLock<'static>,
    failed: Option<io::Error>,
    closed: bool,
}

impl Output {
    pub(crate) fn new() -> Self {
        Self {
            to: io::stdout().lock(),
            failed: None,
            closed: false,
        }
    }

    /// Writes a line.
    pub(crate) fn line(&mut self, line: impl AsRef<[u8]>) {
        if self.closed || self.failed.is_some() {
            return;
        }
        let wrote = self
            .to
            .write_all(line.as_ref())
            .and_then(|()| self.to.write_all(b"\n"));
        self.note(wrote);
    }

    /// False if what is written goes nowhere any more.
    pub(crate) fn is_wanted(&self) -> bool {
        !self.closed && self.failed.is_none()
    }

    /// Makes sure that all lines are out.
    pub(crate) fn flush(&mut self) {
        if !self.closed && self.failed.is_none() {
            let flushed = self.to.flush();
            self.note(flushed);
        }
    }

    /// Ends the output.
    ///
    /// # Errors
    ///
    /// Where something could not be written, except that nobody reads any more.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        self.flush();
        self.failed.map_or(Ok(()), Err)
    }

    fn note(&mut self, result: io::Result<()>) {
        match result {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => self.closed = true,
            Err(error) => self.failed = Some(error),
        }
    }
}

/// A line on standard error. Nothing can be done where that fails, and nothing is lost.
pub(crate) fn note(line: impl std::fmt::Display) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// Bytes of a path as a person reads them: what is no printable UTF-8 is escaped.
pub(crate) fn readable(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for char in chunk.valid().chars() {
            match char {
                '\\' => out.push_str("\\\\"),
                char if char.is_control() => out.extend(char.escape_default()),
                char => out.push(char),
            }
        }
        for byte in chunk.invalid() {
            out.push_str(&format!("\\x{byte:02x}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::readable;

    #[test]
    fn printable_text_stays_and_everything_else_is_escaped() {
        assert_eq!(readable("a b/é".as_bytes()), "a b/é");
        assert_eq!(readable(b"a\nb\\\xff"), "a\\nb\\\\\\xff");
        assert_eq!(readable(b"\x1b[31m"), "\\u{1b}[31m");
    }
}
