//! The one place where a call is admitted or not. Today: everybody on loopback, and everybody at all where the operator
//! said `--insecure`. Identities and rights will be decided here, and nowhere else.

use std::net::SocketAddr;

use tonic::{Request, Status, service::Interceptor};

/// Admits calls.
#[derive(Clone, Copy, Debug)]
pub(super) struct Authorize {
    pub(super) insecure: bool,
}

impl Authorize {
    fn admits(self, peer: Option<SocketAddr>) -> bool {
        self.insecure || peer.is_some_and(|peer| peer.ip().to_canonical().is_loopback())
    }
}

impl Interceptor for Authorize {
    fn call(&mut self, request: Request<()>) -> Result<Request<()>, Status> {
        if self.admits(request.remote_addr()) {
            Ok(request)
        } else {
            Err(Status::permission_denied("only loopback is admitted: this controller has no TLS"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_alone_unless_insecure() {
        let strict = Authorize { insecure: false };
        for (peer, admitted) in
            [("127.0.0.1:1", true), ("[::1]:1", true), ("[::ffff:127.0.0.1]:1", true), ("10.0.0.1:1", false)]
        {
            assert_eq!(strict.admits(peer.parse().ok()), admitted, "{peer}");
        }
        assert!(!strict.admits(None));
        assert!(Authorize { insecure: true }.admits("10.0.0.1:1".parse().ok()));
    }
}
