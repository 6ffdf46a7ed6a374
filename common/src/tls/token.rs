//! Tokens that say who a client is, where no certificate of its own does: a file, which whoever issues them replaces before
//! they expire (a kubelet does that with projected service-account tokens).

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use http::header::AUTHORIZATION;
use tonic::{Request, Status, metadata::AsciiMetadataValue, service::Interceptor};

/// Longest token, bytes: one that a kubelet projects has about a thousand.
pub const MAX_TOKEN: usize = 16 * 1024;

/// A file with a token.
#[derive(Clone)]
pub struct TokenFile(Arc<Path>);

impl fmt::Debug for TokenFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The path alone; the token is nobody's to see.
        f.debug_tuple("TokenFile").field(&self.0).finish()
    }
}

/// There is no token to show.
#[derive(Debug, thiserror::Error)]
#[error("the token file {} {cause}", path.display())]
pub struct TokenError {
    path: PathBuf,
    cause: String,
}

impl TokenFile {
    /// The file; it is read at each call, not here.
    pub fn new(path: &Path) -> TokenFile {
        TokenFile(path.into())
    }

    /// The header with the token that the file holds now.
    ///
    /// # Errors
    /// The file cannot be read, or holds no token.
    fn header(&self) -> Result<AsciiMetadataValue, TokenError> {
        let error = |cause: String| TokenError { path: self.0.to_path_buf(), cause };
        let text =
            std::fs::read_to_string(&self.0).map_err(|cause: io::Error| error(format!("cannot be read: {cause}")))?;
        let token = text.trim();
        if token.is_empty() {
            return Err(error("is empty".to_owned()));
        }
        if token.len() > MAX_TOKEN {
            return Err(error(format!("has more than {MAX_TOKEN} bytes: that is no token")));
        }
        let mut value = AsciiMetadataValue::try_from(format!("Bearer {token}"))
            .map_err(|_| error("has bytes that no token has".to_owned()))?;
        value.set_sensitive(true);
        Ok(value)
    }
}

/// Shows the token of a file, where there is one, with each call. It is read each time: the file lies in memory where a kubelet
/// projects it, and a token from the last hour may have expired.
#[derive(Clone, Debug, Default)]
pub struct Bearer(pub Option<TokenFile>);

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(file) = &self.0 {
            let value = file.header().map_err(|error| Status::unauthenticated(error.to_string()))?;
            request.metadata_mut().insert(AUTHORIZATION.as_str(), value);
        }
        Ok(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_call_shows_what_the_file_holds_then() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        let mut bearer = Bearer(Some(TokenFile::new(&path)));
        let mut shown =
            || bearer.call(Request::new(())).map(|request| request.metadata().get("authorization").cloned());
        let missing = shown().unwrap_err();
        assert!(missing.message().contains("token") && missing.message().contains("cannot be read"), "{missing:?}");
        for (text, says) in [(" \n", "is empty"), (&"x".repeat(MAX_TOKEN + 1), "no token"), ("a\u{1}b", "bytes")] {
            std::fs::write(&path, text).unwrap();
            assert!(shown().unwrap_err().message().contains(says));
        }
        for token in ["first", "second"] {
            std::fs::write(&path, format!("{token}\n")).unwrap();
            let value = shown().unwrap().unwrap();
            assert_eq!(value.as_bytes(), format!("Bearer {token}").as_bytes());
        }
        assert!(Bearer(None).call(Request::new(())).unwrap().metadata().is_empty());
    }

    #[test]
    fn nothing_prints_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("t");
        std::fs::write(&path, "secret-token").unwrap();
        let file = TokenFile::new(&path);
        let value = file.header().unwrap();
        assert!(!format!("{file:?} {value:?}").contains("secret-token"));
    }
}
