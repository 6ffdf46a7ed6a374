//! Errors as clients see them, with their google.rpc details.

use std::{collections::HashMap, time::Duration};

use tonic::{Code, Status};
use tonic_types::{ErrorDetails, FieldViolation, StatusExt};

use crate::{
    model::Violations,
    session::AskError,
    store::{CommitError, Revision, StoreError, WatchError},
};

/// Domain of google.rpc.ErrorInfo.
const DOMAIN: &str = "weir.v1";
/// Bytes of violations in one answer: they travel in a header, and clients bound these.
const MAX_VIOLATIONS: usize = 5000;

/// INVALID_ARGUMENT naming every violated field. Where they are too many for a header, the last entry says how many are
/// left out.
pub(crate) fn invalid(violations: &Violations) -> Status {
    let mut size = 0;
    let mut fields: Vec<FieldViolation> = Vec::new();
    let all = violations.as_slice();
    for violation in all {
        size += violation.field.len() + violation.description.len() + 16;
        if size > MAX_VIOLATIONS && !fields.is_empty() {
            let rest = format!("and {} more fields are invalid", all.len() - fields.len());
            fields.push(FieldViolation::new("", rest));
            break;
        }
        let cut = |text: &str| text.chars().take(1000).collect::<String>();
        fields.push(FieldViolation::new(cut(&violation.field), cut(&violation.description)));
    }
    let message = match all {
        [one] => format!("{}: {}", one.field, one.description).chars().take(1000).collect(),
        _ => format!("{} fields are invalid", all.len()),
    };
    Status::with_error_details(Code::InvalidArgument, message, ErrorDetails::with_bad_request(fields))
}

/// INVALID_ARGUMENT for one field.
pub(crate) fn invalid_field(field: &str, description: impl Into<String>) -> Status {
    let mut violations = Violations::default();
    violations.add(&crate::model::FieldPath::root(field), description);
    invalid(&violations)
}

fn with_info(code: Code, message: String, reason: &str, metadata: &[(&str, String)]) -> Status {
    let metadata: HashMap<String, String> =
        metadata.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
    Status::with_error_details(code, message, ErrorDetails::with_error_info(reason, DOMAIN, metadata))
}

/// UNAVAILABLE: the session has reached its age; the agent connects again at once, to another controller where it has one.
pub(crate) fn reconnect_elsewhere() -> Status {
    let message = "the session has reached its age: connect again, elsewhere where there is a choice".to_owned();
    with_info(Code::Unavailable, message, weir_proto::RECONNECT_ELSEWHERE, &[])
}

/// ABORTED: the object has another etag than the caller expects.
pub(crate) fn etag_mismatch(name: &str, current: &str) -> Status {
    let message = format!("{name} was changed: its etag is {current}");
    with_info(Code::Aborted, message, "ETAG_MISMATCH", &[("etag", current.to_owned())])
}

/// ALREADY_EXISTS.
pub(crate) fn already_exists(name: &str, deleting: bool) -> Status {
    let (message, reason) = if deleting {
        (format!("{name} is being deleted: it is listed until no node holds it, then the name is free"), "DELETING")
    } else {
        (format!("{name} exists"), "EXISTS")
    };
    with_info(Code::AlreadyExists, message, reason, &[])
}

/// FAILED_PRECONDITION: the object is on its way out.
pub(crate) fn is_deleting(name: &str) -> Status {
    with_info(Code::FailedPrecondition, format!("{name} is being deleted and cannot be changed"), "DELETING", &[])
}

/// NOT_FOUND.
pub(crate) fn not_found(name: &str) -> Status {
    Status::not_found(format!("{name} does not exist"))
}

/// OUT_OF_RANGE: a watch cannot be resumed there.
fn out_of_range(message: String, resumable: Revision) -> Status {
    with_info(Code::OutOfRange, message, "NOT_RESUMABLE", &[("oldest_revision", resumable.to_string())])
}

/// UNAVAILABLE with retry info, or INTERNAL where a retry is no use.
pub(crate) fn store(error: &StoreError) -> Status {
    tracing::error!(%error, "the store did not answer");
    if error.is_retryable() {
        let details = ErrorDetails::with_retry_info(Some(Duration::from_secs(1)));
        Status::with_error_details(Code::Unavailable, error.to_string(), details)
    } else {
        Status::internal(error.to_string())
    }
}

/// A commit whose conflict nobody expected.
pub(crate) fn commit(error: &CommitError) -> Status {
    match error {
        CommitError::Store(error) => store(error),
        CommitError::Conflict { .. } => Status::aborted("changed by somebody else at the same time; read it again"),
        CommitError::RepeatedKey(_) => Status::internal(error.to_string()),
    }
}

/// A watch that is over.
pub(crate) fn watch(error: &WatchError) -> Status {
    match error {
        WatchError::Compacted { oldest } => {
            out_of_range(format!("{error}; begin again with resume_revision 0"), *oldest)
        }
        WatchError::Future { current } => {
            out_of_range(format!("{error}; begin again with resume_revision 0"), *current)
        }
        WatchError::Store(error) => store(error),
    }
}

/// A row of the store that cannot be read.
pub(crate) fn record(error: &crate::catalog::RecordError) -> Status {
    tracing::error!(%error, "a row of the store cannot be read");
    Status::data_loss(error.to_string())
}

/// Why there is no answer of an agent.
pub(crate) fn ask(error: &AskError) -> Status {
    match error {
        AskError::Away(_) | AskError::Timeout(_) => {
            let details = ErrorDetails::with_retry_info(Some(Duration::from_secs(5)));
            Status::with_error_details(Code::Unavailable, error.to_string(), details)
        }
        AskError::Unsupported(..) => Status::unimplemented(error.to_string()),
        AskError::Busy(_) => Status::resource_exhausted(error.to_string()),
        AskError::Refused(..) => Status::failed_precondition(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::FieldPath;

    #[test]
    fn many_violations_still_fit_into_a_header() {
        let mut violations = Violations::default();
        for i in 0..2000 {
            violations.add(&FieldPath::root("intent.spec.nodes.any_of").index(i), "an empty term is invalid");
        }
        let status = invalid(&violations);
        assert!(status.details().len() < 8000, "{}", status.details().len());
        let details = status.get_error_details();
        let fields = &details.bad_request().unwrap().field_violations;
        assert!(fields.len() > 50);
        assert!(fields.last().unwrap().description.contains("more fields"));
    }
}
