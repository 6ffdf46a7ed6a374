//! Pages: sizes and tokens. A token is opaque to clients, and good only for the query that it came from.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::{Deserialize, Serialize};
use tonic::Status;

use crate::wire::errors::invalid_field;

const DEFAULT: usize = 100;
const MAX: usize = 1000;
/// Longest token that is looked at, bytes.
const MAX_TOKEN: usize = 64 << 10;

/// Entries in a page: 0 means 100, more than 1000 is lowered.
pub(super) fn size(page_size: i32) -> Result<usize, Status> {
    match usize::try_from(page_size) {
        Ok(0) => Ok(DEFAULT),
        Ok(size) => Ok(size.min(MAX)),
        Err(_) => Err(invalid_field("page_size", "is negative")),
    }
}

#[derive(Serialize, Deserialize)]
struct Token {
    query: Vec<String>,
    after: String,
}

/// A token for what comes after `after` of this query.
pub(super) fn token(query: &[&str], after: &str) -> String {
    let token = Token { query: query.iter().map(|&part| part.to_owned()).collect(), after: after.to_owned() };
    URL_SAFE_NO_PAD.encode(serde_json::to_vec(&token).unwrap_or_default())
}

/// Where a page begins; `None` at the beginning.
pub(super) fn after(query: &[&str], page_token: &str) -> Result<Option<String>, Status> {
    if page_token.is_empty() {
        return Ok(None);
    }
    let decoded = (page_token.len() <= MAX_TOKEN)
        .then(|| URL_SAFE_NO_PAD.decode(page_token).ok())
        .flatten()
        .and_then(|bytes| serde_json::from_slice::<Token>(&bytes).ok());
    match decoded {
        Some(token) if token.query == query => Ok(Some(token.after)),
        Some(_) => Err(invalid_field("page_token", "belongs to another query: the other fields must not change")),
        None => Err(invalid_field("page_token", "is none that this server gave")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_bound_to_their_query() {
        let token = token(&["ListNodes", "a"], "n7");
        assert_eq!(after(&["ListNodes", "a"], &token).unwrap().as_deref(), Some("n7"));
        assert!(after(&["ListNodes", "b"], &token).is_err());
        assert!(after(&["ListNodes", "a"], "garbage!").is_err());
        assert!(after(&["ListNodes", "a"], "e30").is_err());
        assert_eq!(after(&["ListNodes"], "").unwrap(), None);
        assert_eq!((size(0).unwrap(), size(7).unwrap(), size(i32::MAX).unwrap()), (100, 7, 1000));
        assert!(size(-1).is_err());
    }
}
