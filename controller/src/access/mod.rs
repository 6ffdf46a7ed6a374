//! Who calls, and what they may do: identities of connections, roles of clients. Knows neither services nor methods; which
//! method needs what is the table of `api::authorize`. May touch the file of bindings, and nothing else.

mod authenticate;
mod bindings;
mod principal;

pub use authenticate::{Authenticator, ConnectionInfo, Loopback, MutualTls, Unauthenticated};
pub use bindings::{Bindings, BindingsError, BindingsFile};
pub use principal::{Principal, Projects, Rights};
