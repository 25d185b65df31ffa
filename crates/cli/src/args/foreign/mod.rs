//! vLLM's and llama.cpp's flags that Throng has no setting for: a flag is accepted where it asks for
//! Throng's only behaviour, ignored with a notice, or refused with a reason. The flags are rows of tables.

mod flag;
mod flags;
mod llama_cpp;

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

use crate::usage_error::UsageError;
use flag::{ForeignFlag, Outcome, Values};
use flags::FOREIGN_FLAGS;
use llama_cpp::LLAMA_CPP_FLAGS;

pub use llama_cpp::{OPTIONAL_VALUES, SHORT};

/// All flags of the tables.
fn all() -> impl Iterator<Item = &'static ForeignFlag> {
    FOREIGN_FLAGS.iter().chain(LLAMA_CPP_FLAGS)
}

/// The flags of vLLM and llama.cpp that a command line has.
#[derive(Debug, Clone, Default)]
pub struct ForeignArgs {
    given: Vec<Given>,
}

#[derive(Debug, Clone)]
struct Given {
    flag: &'static ForeignFlag,
    /// Whether the flag was given as `--no-NAME`.
    is_opposite: bool,
    values: Vec<String>,
}

impl ForeignArgs {
    /// Notices about ignored flags.
    ///
    /// # Errors
    /// When a flag is refused: a sentence about the first one.
    pub fn notices(&self) -> Result<Vec<String>, UsageError> {
        self.given.iter().filter_map(|given| given.judge().transpose()).collect()
    }
}

impl Given {
    fn judge(&self) -> Result<Option<String>, UsageError> {
        let flag = self.flag;
        let is_harmless =
            |value: &String| flag.harmless.iter().any(|known| value.eq_ignore_ascii_case(known));
        if !self.values.is_empty() && self.values.iter().all(is_harmless) {
            return Ok(None);
        }
        let (name, why) = (flag.name, flag.why);
        match (flag.outcome, self.is_opposite) {
            (Outcome::Always, false) | (Outcome::Refused, true) => Ok(None),
            (Outcome::Refused, false) => {
                let but = match flag.harmless {
                    [] => String::new(),
                    values => format!(" (only {} is accepted)", values.join(" or ")),
                };
                Err(UsageError(format!("--{name} is not supported{but}: {why}")))
            }
            (Outcome::Ignored, false) => Ok(Some(format!("--{name} is ignored: {why}"))),
            (_, true) => Ok(Some(format!("--no-{name} is ignored: {why}"))),
        }
    }
}

impl Args for ForeignArgs {
    fn augment_args(command: Command) -> Command {
        all().fold(command, |command, flag| {
            let arg = Arg::new(flag.name).long(flag.name).aliases(flag.also).hide(true);
            let arg = match flag.values {
                Values::Switch | Values::OneWay => arg.action(ArgAction::SetTrue),
                Values::Maybe => arg
                    .action(ArgAction::Append)
                    .num_args(0..=1)
                    .require_equals(true)
                    .default_missing_value("on"),
                Values::One => arg.action(ArgAction::Append).num_args(1),
                Values::Some => arg.action(ArgAction::Append).num_args(1..),
            };
            let opposite = flag
                .opposite()
                .map(|name| Arg::new(name.clone()).long(name).hide(true).action(ArgAction::SetTrue));
            command.arg(arg).args(opposite)
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for ForeignArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut given = Vec::new();
        for flag in all() {
            if matches!(flag.values, Values::One | Values::Some | Values::Maybe) {
                let values: Vec<String> =
                    matches.get_many(flag.name).into_iter().flatten().cloned().collect();
                given.extend((!values.is_empty()).then_some(Given { flag, is_opposite: false, values }));
                continue;
            }
            for (name, is_opposite) in [(Some(flag.name.to_owned()), false), (flag.opposite(), true)] {
                let is_given = name.is_some_and(|name| matches.get_flag(&name));
                given.extend(is_given.then_some(Given { flag, is_opposite, values: Vec::new() }));
            }
        }
        Ok(Self { given })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(arguments: &[&str]) -> Result<Vec<String>, String> {
        let command = ForeignArgs::augment_args(Command::new("x").no_binary_name(true));
        let matches = command.try_get_matches_from(arguments).map_err(|error| error.to_string())?;
        let flags = ForeignArgs::from_arg_matches(&matches).map_err(|error| error.to_string())?;
        flags.notices().map_err(|error| error.to_string())
    }

    #[test]
    fn flags_are_accepted_ignored_or_refused() {
        assert_eq!(judge(&[]), Ok(vec![]));
        assert_eq!(judge(&["--enable-chunked-prefill", "--data-parallel-size", "1"]), Ok(vec![]));
        let ignored = judge(&["--no-enable-chunked-prefill", "--swap-space", "4"]).expect("ignored");
        assert!(ignored[0].starts_with("--swap-space is ignored: "), "{ignored:?}");
        assert!(ignored[1].starts_with("--no-enable-chunked-prefill is ignored: "), "{ignored:?}");
        let refused = judge(&["--data-parallel-size", "2"]).expect_err("refused");
        assert!(
            refused.starts_with("--data-parallel-size is not supported (only 1 is accepted): "),
            "{refused}"
        );
        assert_eq!(judge(&["--no-enable-eplb"]), Ok(vec![]));
    }
}
