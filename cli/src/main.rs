//! weirctl: Weir's command line. Wiring only.

mod args;
mod client;
mod commands;
mod failure;
mod manifest;
mod names;
mod print;
mod screen;
mod text;

use std::process::ExitCode;

use clap::Parser as _;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match commands::run(args::Cli::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let text = failure.text();
            if !text.is_empty() {
                print::remark(&text);
            }
            ExitCode::from(failure.code())
        }
    }
}
