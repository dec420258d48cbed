//! Where results go: a table or JSON to the output, JSON and a figure to a directory.

use std::error::Error;
use std::fs;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

/// How long, and where to.
#[derive(Args, Clone, Debug)]
pub(crate) struct Output {
    /// Few and short rounds: to see that it works, not to measure
    #[arg(long)]
    pub(crate) quick: bool,
    /// JSON instead of a table
    #[arg(long)]
    json: bool,
    /// Writes the figures and their data to this directory, too
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

impl Output {
    /// `table` is what a reader sees, `data` what a program does; of each figure, the name and the text of its SVG.
    pub(crate) fn write(
        &self,
        name: &str,
        table: &str,
        data: &impl Serialize,
        figures: &[(impl AsRef<str>, String)],
    ) -> Result<(), Box<dyn Error>> {
        let json = serde_json::to_string_pretty(data)?;
        if let Some(dir) = &self.out {
            let said = |error: std::io::Error| format!("{}: {error}", dir.display());
            fs::create_dir_all(dir).map_err(said)?;
            for (figure, svg) in figures {
                let file = format!("{}.svg", figure.as_ref());
                fs::write(dir.join(file), svg).map_err(said)?;
            }
            fs::write(dir.join(format!("{name}.json")), format!("{json}\n")).map_err(said)?;
        }
        println!("{}", if self.json { &json } else { table });
        Ok(())
    }
}
