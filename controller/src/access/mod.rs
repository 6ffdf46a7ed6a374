//! Who calls, and what they may do: identities of connections, roles of clients. Knows neither services nor methods; which
//! method needs what is the table of `api::authorize`. May touch the file of bindings and, for tokens, a Kubernetes API server.

mod authenticate;
mod bindings;
mod principal;
mod tokens;

pub use authenticate::{Authenticator, CertificateOrToken, ConnectionInfo, Loopback, MutualTls, NotAdmitted};
pub use bindings::{Bindings, BindingsError, BindingsFile};
pub use principal::{Principal, Projects, Rights};
pub use tokens::{Account, ApiServer, ApiServerError, TokenRoles, Tokens};
