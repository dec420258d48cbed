//! Findings, and how they are written.

use serde::Serialize;

/// Widest line.
const COLUMNS: usize = 80;
/// Where the text of a finding begins.
const TEXT_AT: usize = 20;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Level {
    Ok,
    Warn,
    Fail,
}

impl Level {
    fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

#[derive(Clone, Debug, Serialize)]
struct Finding {
    check: &'static str,
    level: Level,
    found: String,
    /// What to do about it, unless `found` says so.
    fix: Option<String>,
}

/// What was found, in the order of the checks.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(transparent)]
pub(super) struct Findings(Vec<Finding>);

impl Findings {
    /// It is as it should be.
    pub(super) fn ok(&mut self, check: &'static str, found: impl ToString) {
        self.push(check, Level::Ok, found, None);
    }

    /// It works, and could be better.
    pub(super) fn warn<'a>(
        &mut self,
        check: &'static str,
        found: impl ToString,
        fix: impl Into<Option<&'a str>>,
    ) {
        self.push(check, Level::Warn, found, fix.into());
    }

    /// It does not work.
    pub(super) fn fail<'a>(
        &mut self,
        check: &'static str,
        found: impl ToString,
        fix: impl Into<Option<&'a str>>,
    ) {
        self.push(check, Level::Fail, found, fix.into());
    }

    fn push(&mut self, check: &'static str, level: Level, found: impl ToString, fix: Option<&str>) {
        self.0.push(Finding {
            check,
            level,
            found: found.to_string(),
            fix: fix.map(str::to_owned),
        });
    }

    /// True if nothing failed.
    pub(super) fn are_good(&self) -> bool {
        self.0.iter().all(|finding| finding.level != Level::Fail)
    }

    /// What failed counts as a warning.
    pub(super) fn soften(&mut self) {
        for finding in &mut self.0 {
            if finding.level == Level::Fail {
                finding.level = Level::Warn;
            }
        }
    }

    /// For people: in 80 columns, without the newline at the end.
    pub(super) fn text(&self) -> String {
        let mut lines = Vec::new();
        for finding in &self.0 {
            let level = finding.level.name();
            let mut head = format!("  {level:<5} {:<12}", finding.check);
            let fix = finding.fix.as_ref().map(|fix| format!("fix: {fix}"));
            for text in std::iter::once(&finding.found).chain(&fix) {
                for line in wrap(text, COLUMNS - TEXT_AT) {
                    lines.push(format!("{head:<TEXT_AT$}{line}"));
                    head.clear();
                }
            }
        }
        lines.join("\n")
    }
}

/// Breaks a text at spaces. A word that is wider than a line keeps a line to itself.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_wrapped_under_its_own_start() {
        let mut findings = Findings::default();
        findings.ok("kernel", "Linux");
        let found = "word ".repeat(30);
        findings.warn("hugepages", &found, "run\nthis");
        let text = findings.text();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "  ok    kernel      Linux");
        assert_eq!(
            lines[1],
            format!("  warn  hugepages   {}", "word ".repeat(12).trim_end())
        );
        assert_eq!(lines[4], format!("{:20}fix: run this", ""));
        assert_eq!(lines.len(), 5);
        assert!(lines.iter().all(|line| line.len() <= COLUMNS));
        assert_eq!(wrap(&"x".repeat(70), 60), ["x".repeat(70)]);
        assert_eq!(wrap(&format!("{} y", "x".repeat(58)), 60).len(), 1);
        assert_eq!(wrap(&format!("{} y", "x".repeat(59)), 60).len(), 2);
    }

    #[test]
    fn only_failures_are_bad_and_they_can_be_softened() {
        let mut findings = Findings::default();
        findings.warn("a", "b", None);
        assert!(findings.are_good());
        findings.fail("a", "b", None);
        assert!(!findings.are_good());
        findings.soften();
        assert!(findings.are_good());
        assert_eq!(findings.text().matches("warn").count(), 2);
    }
}
