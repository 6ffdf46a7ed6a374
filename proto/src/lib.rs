//! The contract and nothing else: what `weir/v1/*.proto` says, as Rust types with their JSON form, the services,
//! and the descriptor set for reflection.
//!
//! Only the controller's `api` and `session`, the agent's `link`, and clients may use this crate: everything inside
//! works on its own validated types.

mod field_mask;
mod timestamp;

pub use field_mask::FieldMask;
pub use pbjson_types::Duration;
pub use timestamp::Timestamp;

/// Version of the agent stream's contract, told in both Hellos.
pub const CONTRACT_VERSION: i32 = 1;

/// Reason in the google.rpc.ErrorInfo of the status by which a controller has an agent connect again, elsewhere if it can.
pub const RECONNECT_ELSEWHERE: &str = "RECONNECT_ELSEWHERE";

/// Package `weir.v1`.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::cast_possible_truncation,
    reason = "generated; its documentation is that of the proto files"
)]
pub mod v1 {
    tonic::include_proto!("weir.v1");
    include!(concat!(env!("OUT_DIR"), "/weir.v1.serde.rs"));

    /// Encoded `FileDescriptorSet` of the contract with its imports, for reflection and for documentation.
    pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/weir.descriptors.bin"));
}
