//! The threads that operate on tables. They are started once, pinned, and kept for a whole
//! experiment.
//!
//! Allocators and reclamation schemes keep state for each thread, so new threads in every phase
//! would measure how they are set up.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Barrier};
use std::thread::JoinHandle;
use std::time::Instant;

use crate::LabError;
use crate::machine::{self, CpuClock, CpuUse, thread_time};
use crate::workload::Stream;

type Job = Box<dyn FnOnce(&mut Stream) + Send>;

/// A fixed set of threads, each with its own [`Stream`].
pub(crate) struct Workers {
    lanes: Vec<Sender<Job>>,
    threads: Vec<JoinHandle<()>>,
}

/// The result of a [`race`](Workers::race).
pub(crate) struct Race<R> {
    /// The result of every thread.
    pub(crate) results: Vec<R>,
    /// Seconds from the start of the first thread to the end of the last one.
    pub(crate) seconds: f64,
    /// Processor time used in between.
    pub(crate) used: CpuUse,
    /// The processor seconds of these threads alone, without helper threads of a table.
    pub(crate) serving: f64,
}

impl Workers {
    /// Starts `count` threads. Each is pinned to one processor; they share processors if there are
    /// too few.
    ///
    /// # Errors
    ///
    /// `Io` if the system refuses a thread.
    pub(crate) fn start(count: usize) -> Result<Self, LabError> {
        let processors = machine::processors();
        let mut workers = Workers { lanes: Vec::new(), threads: Vec::new() };
        for number in 0..count {
            let (lane, jobs) = channel::<Job>();
            let processor = processors.get(number % processors.len().max(1)).copied();
            let thread = std::thread::Builder::new()
                .name(format!("lab-{number}"))
                .spawn(move || {
                    if let Some(processor) = processor {
                        machine::pin(processor);
                    }
                    let mut stream = Stream::default();
                    for job in jobs {
                        job(&mut stream);
                    }
                })
                .map_err(|source| LabError::Io { action: "start a thread", path: None, source })?;
            workers.lanes.push(lane);
            workers.threads.push(thread);
        }
        Ok(workers)
    }

    /// Returns the number of threads.
    pub(crate) fn count(&self) -> usize {
        self.lanes.len()
    }

    /// Calls `job` with its number in every thread, and waits for all.
    ///
    /// # Errors
    ///
    /// `Panicked`, or the first error of a job.
    pub(crate) fn each<R: Send + 'static>(
        &self,
        job: impl Fn(usize, &mut Stream) -> Result<R, LabError> + Send + Sync + 'static,
    ) -> Result<Vec<R>, LabError> {
        collect(self.launch(job)?)
    }

    /// As [`each`](Workers::each), but all threads start at the same moment, and time is measured.
    ///
    /// # Errors
    ///
    /// As [`each`](Workers::each).
    pub(crate) fn race<R: Send + 'static>(
        &self,
        job: impl Fn(usize, &mut Stream) -> Result<R, LabError> + Send + Sync + 'static,
    ) -> Result<Race<R>, LabError> {
        let line = Arc::new(Barrier::new(self.count() + 1));
        let start = line.clone();
        let pending = self.launch(move |number, stream| {
            let before = thread_time();
            start.wait();
            let begin = Instant::now();
            let result = job(number, stream)?;
            let end = Instant::now();
            Ok((result, begin, end, thread_time() - before))
        })?;
        let clock = CpuClock::now();
        line.wait();
        let finished = collect(pending);
        let used = clock.elapsed();
        let finished = finished?;
        let begin = finished.iter().map(|one| one.1).min();
        let end = finished.iter().map(|one| one.2).max();
        Ok(Race {
            seconds: begin.zip(end).map_or(0.0, |(begin, end)| (end - begin).as_secs_f64()),
            used,
            serving: finished.iter().map(|one| one.3.as_secs_f64()).sum(),
            results: finished.into_iter().map(|one| one.0).collect(),
        })
    }

    fn launch<R: Send + 'static>(
        &self,
        job: impl Fn(usize, &mut Stream) -> Result<R, LabError> + Send + Sync + 'static,
    ) -> Result<Vec<Receiver<Result<R, LabError>>>, LabError> {
        let job = Arc::new(job);
        let mut pending = Vec::new();
        for (number, lane) in self.lanes.iter().enumerate() {
            let (reply, result) = channel();
            let job = job.clone();
            let work = move |stream: &mut Stream| {
                let result = job(number, stream);
                // The job must release what it holds before the result arrives, because the caller
                // drops the tables.
                drop(job);
                let _ = reply.send(result);
            };
            lane.send(Box::new(work)).map_err(|_| LabError::Panicked)?;
            pending.push(result);
        }
        Ok(pending)
    }
}

fn collect<R>(pending: Vec<Receiver<Result<R, LabError>>>) -> Result<Vec<R>, LabError> {
    // All results are waited for before the first error is returned, so that no thread is working
    // any more.
    let results: Vec<_> =
        pending.into_iter().map(|one| one.recv().unwrap_or(Err(LabError::Panicked))).collect();
    results.into_iter().collect()
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.lanes.clear();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_answers_in_its_place() {
        let workers = Workers::start(3).unwrap();
        assert_eq!(workers.each(|number, _| Ok(number * 10)).unwrap(), [0, 10, 20]);
        let race = workers.race(|number, _| Ok(number)).unwrap();
        assert_eq!(race.results, [0, 1, 2]);
        assert!(race.used.seconds >= race.seconds);
        assert!(race.serving > 0.0);
    }

    #[test]
    fn errors_and_panics_come_back() {
        let workers = Workers::start(2).unwrap();
        let config = |number, _: &mut Stream| match number {
            0 => Ok(()),
            _ => Err(LabError::Config("no".into())),
        };
        assert!(matches!(workers.each(config), Err(LabError::Config(_))));
        let panics = workers.race(|number, _| {
            if number == 1 {
                std::panic::resume_unwind(Box::new("quietly"));
            }
            Ok(())
        });
        assert!(matches!(panics, Err(LabError::Panicked)));
        assert!(matches!(workers.each(|_, _| Ok(())), Err(LabError::Panicked)));
    }
}
