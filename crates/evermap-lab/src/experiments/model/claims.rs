//! What the papers report of many threads on persistent memory, beside what the model predicts.

use super::cost::{Cost, Memory};
use super::measured::Measured;
use crate::report::Grid;
use crate::report::model::cell;

/// Threads of the Dash paper.
pub(super) const THREADS: usize = 24;
/// Threads of RECIPE's measurements.
const RECIPE_THREADS: usize = 16;
/// The one number that the model is fitted to: how many times as much 24 threads remove as one.
pub(super) const FITTED: (&str, f64) = ("dash-eh", 8.4);
/// Times of the Dash paper with one thread (figure 7), as multiples of Dash-EH's: of CCEH and of
/// Level hashing.
const ALONE: [(&str, f64, f64); 4] =
    [("insert", 1.0, 2.5), ("positive", 1.9, 2.6), ("negative", 2.4, 4.4), ("delete", 1.2, 1.9)];
/// The tables with which the paper compares Dash-EH.
const CCEH: &str = "cceh-paper";
const LEVEL: &str = "level-paper";
/// The tree with which RECIPE's paper compares P-HOT.
const FAST_FAIR: &str = "fast-fair-paper";

/// A number of a paper, and the model's.
pub(super) struct Prediction {
    pub(super) what: String,
    /// `None` if the paper only draws it.
    pub(super) paper: Option<f64>,
    pub(super) model: Option<f64>,
    /// The same if every table took the time alone that the paper gives it.
    pub(super) with_papers_times: Option<f64>,
}

/// The model, and what it needs to know.
pub(super) struct Model<'m> {
    pub(super) measured: &'m Measured,
    pub(super) memory: Memory,
}

impl Model<'_> {
    /// Returns what the model says of every number that it was not fitted to.
    pub(super) fn predictions(&self) -> Vec<Prediction> {
        let mut all = self.removals();
        all.extend(self.ratios());
        all.extend(self.scaling());
        all.extend(self.ablations());
        all.extend(self.recipe());
        all
    }

    fn cost(&self, index: &str, phase: &str) -> Option<Cost> {
        self.measured.cost(index, phase)
    }

    /// Returns the cost of an operation whose time alone is the paper's multiple of Dash-EH's.
    fn cost_with_papers_time(&self, index: &str, phase: &str) -> Option<Cost> {
        let (_, cceh, level) = ALONE.into_iter().find(|one| one.0 == phase)?;
        let times = match index {
            CCEH => cceh,
            LEVEL => level,
            _ => 1.0,
        };
        let alone_ns = self.cost("dash-eh", phase)?.alone_ns * times;
        let cost = self.cost(index, phase)?;
        // A larger part of a longer time is exclusive.
        let exclusive_ns = cost.exclusive_ns * alone_ns / cost.alone_ns;
        Some(Cost { alone_ns, exclusive_ns, ..cost })
    }

    /// Section 6.4: removals of 24 threads beside one.
    fn removals(&self) -> Vec<Prediction> {
        let speedup = |cost: Cost| cost.speedup(THREADS, self.memory);
        [("dash-lh", 9.8), (CCEH, 6.1), (LEVEL, 14.7)]
            .map(|(index, paper)| Prediction {
                what: format!("removals, {index}: {THREADS} threads / 1"),
                paper: Some(paper),
                model: self.cost(index, "delete").map(speedup),
                with_papers_times: self.cost_with_papers_time(index, "delete").map(speedup),
            })
            .into()
    }

    /// Section 6.4: Dash-EH beside the other tables with 24 threads.
    fn ratios(&self) -> Vec<Prediction> {
        type CostOf<'c> = &'c dyn Fn(&str, &str) -> Option<Cost>;
        let own: CostOf<'_> = &|index, phase| self.cost(index, phase);
        let papers: CostOf<'_> = &|index, phase| self.cost_with_papers_time(index, phase);
        let ratio = |cost: &dyn Fn(&str) -> Option<Cost>, to: &str| {
            let mops = |index: &str| Some(cost(index)?.mops(THREADS, self.memory));
            Some(mops("dash-eh")? / mops(to)?)
        };
        let mix = |cost: CostOf<'_>, index: &str| {
            Some(cost(index, "insert")?.mixed(0.2, cost(index, "positive")?))
        };
        let predict =
            |what: &str, to: &str, paper, of: &dyn Fn(CostOf<'_>, &str) -> Option<Cost>| {
                Prediction {
                    what: format!("{what}, {THREADS} threads: dash-eh / {to}"),
                    paper,
                    model: ratio(&|index| of(own, index), to),
                    with_papers_times: ratio(&|index| of(papers, index), to),
                }
            };
        let phase = |name: &'static str| move |cost: CostOf<'_>, index: &str| cost(index, name);
        vec![
            predict("insertions", CCEH, Some(1.3), &phase("insert")),
            predict("insertions", LEVEL, Some(8.9), &phase("insert")),
            predict("a fifth insertions, the rest lookups", CCEH, Some(2.7), &mix),
            predict("a fifth insertions, the rest lookups", LEVEL, Some(9.0), &mix),
            predict("lookups of present keys", CCEH, None, &phase("positive")),
            predict("lookups of present keys", LEVEL, None, &phase("positive")),
        ]
    }

    /// Figures 1, 8 and 13, which the paper only draws: do more threads do more?
    fn scaling(&self) -> Vec<Prediction> {
        let drawn = [
            ("insert", CCEH),
            ("positive", CCEH),
            ("insert", LEVEL),
            ("positive", LEVEL),
            ("insert", "dash-eh"),
            ("positive", "dash-eh"),
            ("negative", "dash-eh"),
            ("positive", "dash-eh-locked-reads"),
            ("negative", "dash-eh-locked-reads"),
        ];
        drawn
            .map(|(phase, index)| Prediction {
                what: format!("{phase}, {index}: {THREADS} threads / 1"),
                paper: None,
                model: self.cost(index, phase).map(|cost| cost.speedup(THREADS, self.memory)),
                with_papers_times: None,
            })
            .into()
    }

    /// Figures 9 and 10: what an idea is worth with 24 threads.
    fn ablations(&self) -> Vec<Prediction> {
        let ideas = [
            ("fingerprints", "dash-eh-no-fingerprints", [1.04, 1.19, 1.72, 1.02]),
            ("overflow metadata", "dash-eh-no-metadata", [1.07, 1.29, 1.70, 1.16]),
        ];
        let mut all = Vec::new();
        for (idea, without, papers) in ideas {
            for ((phase, ..), paper) in ALONE.into_iter().zip(papers) {
                let mops = |index| Some(self.cost(index, phase)?.mops(THREADS, self.memory));
                all.push(Prediction {
                    what: format!("{phase}, {THREADS} threads: with {idea} / without"),
                    paper: Some(paper),
                    model: mops("dash-eh").zip(mops(without)).map(|(with, without)| with / without),
                    with_papers_times: None,
                });
            }
        }
        all
    }

    /// RECIPE: "up to 5.2 times" in point operations, with 16 threads.
    fn recipe(&self) -> Vec<Prediction> {
        let ratio = |to: &str, mix: &str| {
            let mops = |index| Some(self.cost(index, mix)?.mops(RECIPE_THREADS, self.memory));
            Some(mops("p-hot")? / mops(to)?)
        };
        let points = ["recipe-a", "recipe-b", "recipe-c"];
        let most = points.iter().filter_map(|mix| ratio(FAST_FAIR, mix)).max_by(f64::total_cmp);
        let mut all = vec![Prediction {
            what: format!("the most of A, B and C, {RECIPE_THREADS} threads: p-hot / {FAST_FAIR}"),
            paper: Some(5.2),
            model: most,
            with_papers_times: None,
        }];
        for mix in points.into_iter().chain(["recipe-e"]) {
            all.extend([FAST_FAIR, "fast-fair"].map(|to| Prediction {
                what: format!("{mix}, {RECIPE_THREADS} threads: p-hot / {to}"),
                paper: None,
                model: ratio(to, mix),
                with_papers_times: None,
            }));
        }
        all
    }
}

/// Returns the predictions as a table, with the model's error where the paper has a number.
pub(super) fn table(predictions: &[Prediction]) -> Grid {
    let title = "A model, not a measurement: what it was not fitted to";
    let columns = ["paper", "model", "model / paper", "with the paper's times alone", "/ paper"];
    let mut grid = Grid::new(title, &columns);
    for one in predictions.iter().filter(|one| one.model.is_some()) {
        let error = |model: Option<f64>| cell(model.zip(one.paper).map(|(m, p)| m / p), 2);
        grid.push(
            one.what.clone(),
            vec![
                one.paper.map_or("drawn".into(), |paper| format!("{paper}")),
                cell(one.model, 2),
                error(one.model),
                cell(one.with_papers_times, 2),
                error(one.with_papers_times),
            ],
        );
    }
    grid
}
