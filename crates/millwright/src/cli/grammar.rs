//! What is made from the grammar of the command line itself: completions, man pages, and what is said about
//! a line that does not fit it.

use super::exit::CliError;
use super::output::Format;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, Command};
use clap_complete::Shell;
use std::ffi::OsString;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Args)]
#[command(after_help = "Examples:
  millwright completion bash > /etc/bash_completion.d/millwright
  millwright completion zsh > \"${fpath[1]}/_millwright\"
  millwright completion fish > ~/.config/fish/completions/millwright.fish
  source <(millwright completion bash)                 for this shell only")]
pub struct CompletionArgs {
    /// Which shell
    #[arg(value_enum, value_name = "SHELL")]
    shell: Shell,
}

#[derive(Args)]
#[command(after_help = "Examples:
  millwright man | man -l -                            the main page
  millwright man --out /usr/local/share/man/man1       one page for each command")]
pub struct ManArgs {
    /// Write a page for each command into this folder
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

pub fn completion(mut grammar: Command, args: &CompletionArgs) -> Result<(), CliError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut grammar, "millwright", &mut script);
    print(&script)
}

pub fn man(grammar: Command, args: &ManArgs) -> Result<(), CliError> {
    match &args.out {
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(grammar).render(&mut page)?;
            print(&page)
        }
        Some(folder) => {
            let failed = |e: std::io::Error| CliError::failed(format!("writing pages to {}: {e}", folder.display()));
            std::fs::create_dir_all(folder).map_err(failed)?;
            let mut grammar = grammar.disable_help_subcommand(true);
            // fills in the full names of subcommands
            grammar.build();
            let count = pages(&grammar, folder).map_err(failed)?;
            print(format!("{count} pages written to {}\n", folder.display()).as_bytes())
        }
    }
}

/// A page for this command and each below it: `millwright-run-start.1`.
fn pages(command: &Command, folder: &Path) -> std::io::Result<usize> {
    let name = command.get_display_name().unwrap_or(command.get_name()).to_owned();
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone()).render(&mut page)?;
    std::fs::write(folder.join(format!("{name}.1")), page)?;
    let mut count = 1;
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        count += pages(sub, folder)?;
    }
    Ok(count)
}

fn print(bytes: &[u8]) -> Result<(), CliError> {
    let mut out = std::io::stdout().lock();
    out.write_all(bytes)?;
    Ok(out.flush()?)
}

/// Says what does not fit the grammar; as JSON where that was asked for, although the line as a whole was
/// not understood. Help and version are no errors.
pub fn usage_error(error: &clap::Error, words: impl IntoIterator<Item = OsString>) -> ExitCode {
    let wanted = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    if wanted || !asks_for_json(words) {
        // a closed terminal leaves nobody to tell
        drop(error.print());
        return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
    }
    let alternatives: Vec<String> =
        [ContextKind::ValidValue, ContextKind::ValidSubcommand, ContextKind::SuggestedSubcommand]
            .iter()
            .find_map(|kind| match error.get(*kind) {
                Some(ContextValue::Strings(words)) => Some(words.clone()),
                Some(ContextValue::String(word)) => Some(vec![word.clone()]),
                _ => None,
            })
            .unwrap_or_default();
    let text = error.render().to_string();
    let mut parts = text.trim().splitn(2, "\n\n");
    let message = parts.next().unwrap_or_default().trim_start_matches("error: ").replace('\n', " ");
    let hint = parts.next().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ");
    let error = CliError::usage(message.split_whitespace().collect::<Vec<_>>().join(" ")).because("USAGE");
    error.allowing(alternatives).hint(hint).report(Format::Json)
}

fn asks_for_json(words: impl IntoIterator<Item = OsString>) -> bool {
    let words: Vec<String> = words.into_iter().map(|word| word.to_string_lossy().into_owned()).collect();
    words.iter().any(|word| matches!(word.as_str(), "-ojson" | "-o=json" | "--output=json"))
        || words.windows(2).any(|pair| matches!(pair[0].as_str(), "-o" | "--output") && pair[1] == "json")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_heard_in_every_spelling() {
        let asks = |line: &str| asks_for_json(line.split(' ').map(OsString::from));
        for line in ["run list -o json", "run list -ojson", "--output=json x", "x --output json"] {
            assert!(asks(line), "{line}");
        }
        for line in ["run list", "run list -o yaml", "machine show json"] {
            assert!(!asks(line), "{line}");
        }
    }
}
