//! Effects of flags of vLLM and llama.cpp that Throng has no setting for. Does not know which flags there
//! are.

/// A flag of vLLM or llama.cpp.
#[derive(Debug)]
pub struct ForeignFlag {
    /// Its name without dashes in front.
    pub name: &'static str,
    /// What follows it.
    pub values: Values,
    /// What it does.
    pub outcome: Outcome,
    /// The sentence of the notice or refusal, after the flag's name.
    pub why: &'static str,
    /// Values that ask for what Throng does anyway.
    pub harmless: &'static [&'static str],
    /// Its other names.
    pub also: &'static [&'static str],
}

/// What follows a flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Values {
    /// Nothing. A flag `--no-NAME` comes with it.
    Switch,
    /// Nothing, and its opposite is a flag of Throng's own.
    OneWay,
    /// One value.
    One,
    /// One value after `=`, or nothing.
    Maybe,
    /// One or more values.
    Some,
}

/// What a flag does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Asks for what Throng does anyway; its opposite is ignored with a notice.
    Always,
    /// Ignored with a notice.
    Ignored,
    /// Ends the process; its opposite asks for what Throng does anyway.
    Refused,
}

/// A flag that asks for what Throng does anyway.
pub const fn always(name: &'static str, values: Values, why: &'static str) -> ForeignFlag {
    ForeignFlag { name, values, outcome: Outcome::Always, why, harmless: &[], also: &[] }
}

/// A flag that changes nothing that a client could see.
pub const fn ignored(name: &'static str, values: Values, why: &'static str) -> ForeignFlag {
    ForeignFlag { name, values, outcome: Outcome::Ignored, why, harmless: &[], also: &[] }
}

/// A flag that asks for what Throng does not do.
pub const fn refused(name: &'static str, values: Values, why: &'static str) -> ForeignFlag {
    ForeignFlag { name, values, outcome: Outcome::Refused, why, harmless: &[], also: &[] }
}

impl ForeignFlag {
    /// The same, but for values that ask for what Throng does anyway.
    pub const fn but(self, harmless: &'static [&'static str]) -> Self {
        Self { harmless, ..self }
    }

    /// Adds other names.
    pub const fn also(self, also: &'static [&'static str]) -> Self {
        Self { also, ..self }
    }

    /// The flag that asks for the opposite.
    pub fn opposite(&self) -> Option<String> {
        (self.values == Values::Switch).then(|| format!("no-{}", self.name))
    }
}
