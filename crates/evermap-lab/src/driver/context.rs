//! What all runs of one experiment share.

use super::config::Config;
use super::step::Step;
use super::workers::Workers;
use crate::subject::setup::Setup;
use crate::workload::Workload;

/// Takes tables through the steps of a plan.
pub(super) struct Driver<'a> {
    pub(super) config: &'a Config,
    pub(super) setup: Setup,
    pub(super) steps: Vec<Step>,
    pub(super) workers: Workers,
    pub(super) workload: Workload,
}
