//! What operators and their machines ask a process over HTTP: `/metrics`, `/livez`, `/readyz`. A process says what it knows
//! as plain values when it is asked; nothing is counted twice, and nothing is sent.

mod metrics;
mod server;

pub use metrics::{Family, Histogram, Kind, Sample, Value};
pub use server::{Addressed, Answers, OpsError, bind, serve};
