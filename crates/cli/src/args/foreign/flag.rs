//! Effects of flags of vLLM and llama.cpp that Throng has no setting for. Does not know individual flags.

/// A flag of vLLM or llama.cpp.
#[derive(Debug)]
pub struct ForeignFlag {
    /// Name without leading dashes.
    pub name: &'static str,
    /// Values that the flag takes.
    pub values: Values,
    /// Effect of the flag.
    pub outcome: Outcome,
    /// The sentence of the notice or refusal, after the flag's name.
    pub why: &'static str,
    /// Values that ask for Throng's only behaviour, so they are accepted silently.
    pub harmless: &'static [&'static str],
    /// Aliases of the flag.
    pub also: &'static [&'static str],
}

/// Number of values that a flag takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Values {
    /// No value; the flag has an opposite, `--no-NAME`.
    Switch,
    /// No value; the opposite is one of Throng's own flags.
    OneWay,
    /// One value.
    One,
    /// An optional value after `=`.
    Maybe,
    /// One or more values.
    Some,
}

/// Effect of a flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Asks for Throng's only behaviour; its opposite is ignored with a notice.
    Always,
    /// Ignored with a notice.
    Ignored,
    /// Ends the process; its opposite asks for Throng's only behaviour.
    Refused,
}

/// A flag that asks for Throng's only behaviour.
pub const fn always(name: &'static str, values: Values, why: &'static str) -> ForeignFlag {
    ForeignFlag { name, values, outcome: Outcome::Always, why, harmless: &[], also: &[] }
}

/// A flag that changes nothing that a client could see.
pub const fn ignored(name: &'static str, values: Values, why: &'static str) -> ForeignFlag {
    ForeignFlag { name, values, outcome: Outcome::Ignored, why, harmless: &[], also: &[] }
}

/// A flag that asks for a feature that Throng lacks.
pub const fn refused(name: &'static str, values: Values, why: &'static str) -> ForeignFlag {
    ForeignFlag { name, values, outcome: Outcome::Refused, why, harmless: &[], also: &[] }
}

impl ForeignFlag {
    /// Accepts these values silently, because they ask for Throng's only behaviour.
    pub const fn but(self, harmless: &'static [&'static str]) -> Self {
        Self { harmless, ..self }
    }

    /// Adds aliases.
    pub const fn also(self, also: &'static [&'static str]) -> Self {
        Self { also, ..self }
    }

    /// The name of the flag `no-NAME`, if this flag has one.
    pub fn opposite(&self) -> Option<String> {
        (self.values == Values::Switch).then(|| format!("no-{}", self.name))
    }
}
