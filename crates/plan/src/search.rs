//! The search for a fleet: every way to serve a model with some machines, in the order of a goal, and the
//! reasons for the impossible ones.

use crate::error::PlanError;
use crate::fleet::{FleetPlan, Setup};
use crate::load::Load;
use crate::replica::Targets;

/// The order in which fleets are preferred.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Goal {
    /// The fewest devices.
    Smallest,
    /// Lowest price of an hour.
    Cheapest,
    /// The least power.
    LeastPower,
}

/// Requirements on fleets.
#[derive(Debug, Clone, Copy)]
pub struct Question {
    /// Load of the users.
    pub load: Load,
    /// Targets of latency.
    pub targets: Targets,
    /// Number of replicas that may be lost.
    pub n_spare: u64,
    /// A number of replicas whose highest load is computed; none: the smallest number for the load.
    pub n_replicas: Option<u64>,
    /// The order of the answers.
    pub goal: Goal,
}

/// Answers to a question.
#[derive(Debug, Clone, Default)]
pub struct Answers {
    /// Fleets with the index of their setup, the best first.
    pub plans: Vec<(usize, FleetPlan)>,
    /// Indices of setups that cannot meet the load, with the reason.
    pub refused: Vec<(usize, PlanError)>,
}

impl Question {
    /// The fleets of all setups.
    ///
    /// # Errors
    /// When a number of the question is invalid, or a goal needs a figure that no machine has. Faults of one
    /// setup are among the answers.
    pub fn answer(&self, setups: &[Setup]) -> Result<Answers, PlanError> {
        self.load.check()?;
        let mut answers = Answers::default();
        for (idx, setup) in setups.iter().enumerate() {
            let found = match self.n_replicas {
                Some(n) => setup.at_highest(&self.load, &self.targets, n),
                None => setup.smallest(&self.load, &self.targets, self.n_spare),
            };
            match found.and_then(|plan| self.key(&plan).map(|_| plan)) {
                Ok(plan) => answers.plans.push((idx, plan)),
                Err(error) => answers.refused.push((idx, error)),
            }
        }
        let key = |plan: &FleetPlan| self.key(plan).unwrap_or(f64::INFINITY);
        if self.n_replicas.is_some() {
            answers.plans.sort_by(|(_, a), (_, b)| b.highest_rate.total_cmp(&a.highest_rate));
        } else {
            let order = |a: &FleetPlan, b: &FleetPlan| {
                key(a).total_cmp(&key(b)).then(a.steady.first_token.p99.total_cmp(&b.steady.first_token.p99))
            };
            answers.plans.sort_by(|(_, a), (_, b)| order(a, b));
        }
        Ok(answers)
    }

    /// The number that the goal minimizes.
    fn key(&self, plan: &FleetPlan) -> Result<f64, PlanError> {
        let lacks = |figure, purpose| PlanError::NoFigure { machine: plan.machine.clone(), figure, purpose };
        match self.goal {
            Goal::Smallest => Ok(plan.n_devices as f64),
            Goal::Cheapest => {
                plan.price_per_hour.ok_or_else(|| lacks("price_per_hour", "to find the cheapest fleet"))
            }
            Goal::LeastPower => plan.watts.ok_or_else(|| lacks("watts", "to find the fleet of least power")),
        }
    }
}
