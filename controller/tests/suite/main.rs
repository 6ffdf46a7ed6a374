//! The controller's integration tests, one program: linking it once is most of what building them costs. Modules are named by
//! layer. Those of etcd need the feature `etcd`; `etcd_is_built` says where they are left out.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test fails by panicking, and speaks to a person"
)]

mod api_delete;
mod api_intents;
mod api_matrix;
mod api_tls;
mod binary;
mod common;
mod etcd_is_built;
mod leader_etcd;
mod session_attach;
mod session_plan;
mod store_etcd;
mod store_etcd_access;
mod store_etcd_faults;
