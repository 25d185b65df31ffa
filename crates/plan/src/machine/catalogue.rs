//! Descriptions of machines: the built-in ones, and an operator's own in the same form.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{Figure, Machine};
use crate::error::PlanError;

/// Built-in descriptions of machines.
const BUILT_IN: &str = include_str!("../../data/machines.toml");

/// Machines, and the sources of their figures.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Catalogue {
    /// Sources of figures, by their keys.
    #[serde(default)]
    pub sources: BTreeMap<String, String>,
    /// Machines by name.
    #[serde(rename = "machine", default)]
    pub machines: Vec<Machine>,
}

impl Catalogue {
    /// The machines in the box.
    ///
    /// # Panics
    /// Never: a test parses the file.
    pub fn built_in() -> Self {
        Self::parse("machines in the box", BUILT_IN).expect("a test parses it")
    }

    /// Reads descriptions in TOML; `what` names them in errors.
    ///
    /// # Errors
    /// When the text is no such description, or a figure is not a finite number above zero.
    pub fn parse(what: &str, text: &str) -> Result<Self, PlanError> {
        let malformed = |reason: String| PlanError::Malformed { what: what.to_owned(), reason };
        let catalogue: Self = toml::from_str(text).map_err(|error| malformed(error.to_string()))?;
        for machine in &catalogue.machines {
            machine.check()?;
            for (name, Figure { source, .. }) in machine.figures() {
                let Some(source) = source else { continue };
                if !catalogue.sources.contains_key(source) {
                    let machine = &machine.name;
                    return Err(malformed(format!("{name} of {machine} names the absent source {source}")));
                }
            }
        }
        Ok(catalogue)
    }

    /// Adds machines; one of the same name replaces the earlier one.
    pub fn extend(&mut self, other: Self) {
        self.machines.retain(|machine| other.machines.iter().all(|new| new.name != machine.name));
        self.machines.extend(other.machines);
        self.sources.extend(other.sources);
    }

    /// The machine of this name.
    ///
    /// # Errors
    /// When there is no such machine; the error lists the known ones.
    pub fn find(&self, name: &str) -> Result<&Machine, PlanError> {
        self.machines.iter().find(|machine| machine.name == name).ok_or_else(|| {
            let known =
                self.machines.iter().map(|machine| machine.name.as_str()).collect::<Vec<_>>().join(", ");
            PlanError::NoMachine { name: name.to_owned(), known }
        })
    }
}
