//! The simulator as a WebAssembly module for the playground: takes a scenario as text and returns JSON.
//!
//! WebAssembly functions take only numbers. The page calls [`input`] for a buffer, writes the scenario there, calls [`run`],
//! and reads as many bytes from [`output`] as `run` returned.

mod samples;

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};
use tidegate_lab::input::{InputError, SourceFile};
use tidegate_lab::monitor::Monitor;
use tidegate_lab::runs::run_with;
use tidegate_lab::scenario::Scenario;

use samples::Samples;

/// The page waits for the end of a run, so this monitor needs neither clock nor progress.
struct Page;

impl Monitor for Page {}

/// Runs a scenario's first system with its first seed. Returns digest, rates in bytes/s over time and queued bytes at each
/// relay, or `{"error": ..}`.
pub fn answer(text: &str) -> Value {
    simulate(text).unwrap_or_else(|error| json!({ "error": error.to_string() }))
}

fn simulate(text: &str) -> Result<Value, InputError> {
    let source = SourceFile { file: "the scenario".into(), text: text.to_owned() };
    let scenario = Scenario::parse(source, PathBuf::new(), &[])?;
    let mut samples = Samples::default();
    // One thread: browsers run this module in a single worker.
    let run = run_with(&scenario, (0, scenario.file.seed), 1, &Page, &mut samples)?
        .expect("this monitor never stops a run");
    let metrics = &run.metrics;
    let rates = metrics.delivered.names.iter().zip(&metrics.delivered.curves).map(|(name, curve)| {
        let rates: Vec<f64> = metrics.delivered.rates(curve).map(|(_, rate)| rate).collect();
        json!({ "name": name, "values": rates })
    });
    let relays = metrics.relays.iter().map(|relay| {
        let [queued, sending] = samples.of(relay.host);
        json!({ "name": relay.name, "queued_bytes": queued, "sending_bytes": sending })
    });
    Ok(json!({
        "digest": format!("{:016x}", run.digest),
        "duration_s": scenario.duration().as_secs_f64(),
        "rate_step_s": metrics.delivered.step.as_secs_f64(),
        "rates_bytes_per_s": rates.collect::<Vec<_>>(),
        "sample_step_s": scenario.sample().as_secs_f64(),
        "relays": relays.collect::<Vec<_>>(),
        "latency_mean_s": metrics.latency.mean(),
        "cells_delivered": metrics.summary["cells_delivered"],
    }))
}

static INPUT: Mutex<Vec<u8>> = Mutex::new(Vec::new());
static OUTPUT: Mutex<Vec<u8>> = Mutex::new(Vec::new());

fn lock(buffer: &'static Mutex<Vec<u8>>) -> MutexGuard<'static, Vec<u8>> {
    buffer.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns a buffer into which the page writes a scenario of `bytes` bytes.
#[expect(unsafe_code, reason = "the exported name is unique in the module")]
#[unsafe(no_mangle)]
pub extern "C" fn input(bytes: usize) -> *mut u8 {
    let mut buffer = lock(&INPUT);
    buffer.clear();
    buffer.resize(bytes, 0);
    buffer.as_mut_ptr()
}

/// Runs the scenario in the input buffer; returns the length of the answer.
#[expect(unsafe_code, reason = "the exported name is unique in the module")]
#[unsafe(no_mangle)]
pub extern "C" fn run() -> usize {
    let text = String::from_utf8_lossy(&lock(&INPUT)).into_owned();
    let mut output = lock(&OUTPUT);
    *output = answer(&text).to_string().into_bytes();
    output.len()
}

/// Returns the buffer with the answer.
#[expect(unsafe_code, reason = "the exported name is unique in the module")]
#[unsafe(no_mangle)]
pub extern "C" fn output() -> *const u8 {
    lock(&OUTPUT).as_ptr()
}
