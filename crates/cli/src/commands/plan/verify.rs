//! Size and support of a plan's model, by the product's own loader and memory sizing.

use throng_plan::machine::MachineKind;
use throng_plan::{Catalogue, Machine};

use super::model::PlannedModel;
use super::view::FleetView;
use crate::args::PlanArgs;
use crate::config::{EngineSection, ModelSection};
use crate::running;

/// Notes about the checks that were and were not performed.
pub fn notes(
    arguments: &PlanArgs,
    planned: &PlannedModel,
    catalogue: &Catalogue,
    best: Option<&FleetView>,
) -> Vec<String> {
    let mut notes = vec![of_model(arguments, planned, best)];
    notes.extend(planned.note.clone());
    if let Some(machine) = best.and_then(|best| catalogue.find(&best.machine).ok()) {
        notes.extend(of_machine(machine));
    }
    notes
}

fn of_model(arguments: &PlanArgs, planned: &PlannedModel, best: Option<&FleetView>) -> String {
    let Some(loaded) = &planned.loaded else {
        return match arguments.shape {
            Some(_) => "Not checked: the sizes were typed in, and no file of the model was read.".to_owned(),
            None => "Checked: Throng reads this configuration. Its weights are not here, so that they were not loaded."
                .to_owned(),
        };
    };
    let section = ModelSection { model: arguments.model.clone(), ..ModelSection::default() };
    let engine = EngineSection {
        max_batch_sequences: best.map(|best| best.max_num_seqs),
        max_batch_tokens: best.map(|best| best.max_num_batched_tokens),
        ..EngineSection::default()
    };
    match running::check(&section, &engine, loaded) {
        Ok(()) => {
            "Checked: throng serve starts this model on this machine with these bounds of batches.".to_owned()
        }
        Err(error) => format!("Checked: throng serve does not start this model on this machine: {error:#}"),
    }
}

fn of_machine(machine: &Machine) -> Option<String> {
    (machine.kind == MachineKind::Accelerator).then(|| {
        format!(
            "Throng computes on processors: {} is for engines with OpenAI's API behind throng gateway --replica.",
            machine.name
        )
    })
}
