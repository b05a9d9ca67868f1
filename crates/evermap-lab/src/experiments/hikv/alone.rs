//! What an operation of HiKV takes of a serving thread and of a backend: measured with one thread
//! that serves, and then updates the tree itself. So no time counts in which a backend looks for
//! work.

use std::time::Duration;

use evermap_papers::hikv::HiKv;
use evermap_pm::Medium;

use super::bench::ADAPTIVE;
use super::model::Demand;
use super::pool::{loaded, operate};
use crate::LabError;
use crate::driver::Config;
use crate::indexes::builder::IndexBuilder;
use crate::indexes::media::Memory;
use crate::machine::thread_time;
use crate::report::Output;
use crate::subject::Guards;
use crate::workload::{Blend, Kind, Mix, Speller, Stream, Workload, Zipf};

/// Operations between two updates of the tree: fewer than a queue has space for.
const BURST: usize = 256;

/// Returns what an operation of each mix takes: medians of as many stores as there are rounds.
pub(super) fn demands(
    config: &Config,
    mixes: &[&'static str],
    out: &mut dyn Output,
) -> Result<Vec<(&'static str, Demand)>, LabError> {
    out.begin((mixes.len() * config.rounds) as u64);
    let mut demands = Vec::new();
    for &name in mixes {
        let mix: Mix = name.parse()?;
        let ops = if mix.scan > 0 { config.keys / 10 } else { config.keys }.max(1);
        let blend = Blend { mix, keys: mix.keys, theta: Zipf::YCSB, ops };
        let mut rounds = Vec::new();
        for _ in 0..config.rounds {
            out.step(&format!("hikv: {name}, both sides by one thread"));
            rounds.push(measure(config, &blend)?);
        }
        demands.push((name, Demand::median(&rounds)));
    }
    Ok(demands)
}

/// Measures a mix on a new store.
fn measure(config: &Config, blend: &Blend) -> Result<Demand, LabError> {
    let setup = config.check(1)?;
    let builder = IndexBuilder { name: ADAPTIVE, guards: Guards::PerOperation, setup: &setup };
    let workload = Workload { keys: config.keys, threads: 1, seed: config.seed };
    match builder.memory().map_err(failed)? {
        Memory::Plain(medium) => on(&builder, medium, workload, blend),
        Memory::Watched(medium) => on(&builder, medium, workload, blend),
    }
}

fn failed(error: evermap_pm::Error) -> LabError {
    LabError::index(ADAPTIVE, error)
}

fn on<M: Medium>(
    builder: &IndexBuilder<'_>,
    medium: M,
    workload: Workload,
    blend: &Blend,
) -> Result<Demand, LabError> {
    let (store, speller) = loaded(builder, medium, workload)?;
    let mut stream = Stream::default();
    stream.fill_mix(&workload, blend, 0);
    stream.spell(&speller);
    in_turns(&store, &speller, &stream).map_err(failed)
}

/// Does the operations of a stream, and updates the tree after each [`BURST`] and before each scan,
/// which would do it otherwise.
fn in_turns<M: Medium>(
    store: &HiKv<M>,
    speller: &Speller,
    stream: &Stream,
) -> evermap_pm::Result<Demand> {
    let (mut serving, mut applying) = (Duration::ZERO, Duration::ZERO);
    let (mut value, mut begun, mut waiting) = (Vec::new(), thread_time(), 0);
    for at in 0..stream.keys.len() {
        if waiting == BURST || waiting > 0 && matches!(stream.ops[at].kind, Kind::Scan(_)) {
            let served = thread_time();
            while store.update_tree(0, 1)? > 0 {}
            let applied = thread_time();
            serving += served - begun;
            applying += applied - served;
            (begun, waiting) = (applied, 0);
        }
        waiting += usize::from(operate(store, speller, stream, at, &mut value)?);
    }
    serving += thread_time() - begun;
    let each = |time: Duration| time.as_nanos() as f64 / stream.keys.len() as f64;
    Ok(Demand { serving: each(serving), backend: each(applying), ..Demand::default() })
}
