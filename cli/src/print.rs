//! Printing: tables for people, canonical JSON and YAML for programs. Everything goes through here, so that a reader that
//! closes the pipe ends the command quietly.

use std::{collections::BTreeMap, io::Write as _};

use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;

use crate::{args::Output, failure::Failure};

/// Prints text and a line's end.
///
/// # Errors
/// Standard output is closed.
pub fn line(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}")?;
    out.flush()?;
    Ok(())
}

/// Tells a person something beside the output, on standard error; nobody there to read it is no error.
pub fn remark(text: &str) {
    let _nobody_reads = writeln!(std::io::stderr().lock(), "weirctl: {text}");
}

/// Prints a value as JSON or YAML; `false` where a table is wanted.
///
/// # Errors
/// It cannot be printed.
pub fn structured<T: Serialize>(value: &T, output: Output) -> Result<bool, Failure> {
    let text = match output {
        Output::Table => return Ok(false),
        Output::Json => serde_json::to_string_pretty(value).map_err(|error| Failure::Other(error.to_string()))?,
        Output::Yaml => serde_saphyr::to_string(value).map_err(|error| Failure::Other(error.to_string()))?,
    };
    line(text.trim_end())?;
    Ok(true)
}

/// Prints a list as `{"KEY": [...]}`, also where it is empty.
///
/// # Errors
/// It cannot be printed.
pub fn list<T: Serialize>(key: &str, items: &[T], output: Output) -> Result<bool, Failure> {
    structured(&BTreeMap::from([(key, items)]), output)
}

/// Prints a value as one of a stream: JSON on a line of its own, a YAML document of its own.
///
/// # Errors
/// It cannot be printed.
pub fn streamed<T: Serialize>(value: &T, output: Output) -> Result<bool, Failure> {
    match output {
        Output::Table => Ok(false),
        Output::Json => {
            line(&serde_json::to_string(value).map_err(|error| Failure::Other(error.to_string()))?)?;
            Ok(true)
        }
        Output::Yaml => {
            line("---")?;
            structured(value, output)
        }
    }
}

/// A table with a head; rows are as wide as they need to be.
pub fn table(head: &[&str], rows: Vec<Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(head.to_vec());
    for row in rows {
        table.add_row(row);
    }
    // Words begin at the line's edge, and two blanks part the columns.
    table.column_iter_mut().for_each(|column| {
        column.set_padding((0, 2));
    });
    let text = table.to_string();
    text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
}
