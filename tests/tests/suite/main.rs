//! Tests of the binaries that need no disk and no root, one program; modules are named by layer. What throttles real disks is
//! in programs of its own (native_*), since those run one at a time.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test fails by panicking, and speaks to a person"
)]

mod api_agent_tls;
mod api_contract;
mod api_tokens;
mod cli_certs;
mod cli_store;
mod cli_weirctl;
mod devices_layouts;
mod docs_conditions;
mod docs_metrics;
mod sim_agents;
mod sim_metrics;
mod sim_replicas;
mod sim_traces;
mod skew;
