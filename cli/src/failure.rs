//! What can go wrong, as a person reads it, and the exit code that scripts read.

use std::fmt::Write as _;

use tonic::{Code, Status};
use tonic_types::StatusExt as _;
use weir_common::{telemetry::rpc::code_name, tls::explain_call};

/// A failed command.
#[derive(Debug)]
pub enum Failure {
    /// A manifest cannot be understood; the text says where.
    Manifest(String),
    /// The controller refused; where its words concern a manifest, they were put beside its lines already.
    Refused(Box<Status>, Option<String>),
    /// The controller cannot be reached.
    Unreachable(String),
    /// A controller answers, and one of both sides refuses the other's certificate.
    Untrusted(String),
    /// Waited, and nodes failed.
    NodesFailed(String),
    /// Waited, and the time was up.
    TimedOut(String),
    /// Wrong usage that the command line's parser does not see.
    Usage(String),
    /// Anything else.
    Other(String),
    /// Several things failed, one after the other; never empty.
    Several(Vec<Failure>),
    /// Standard output was closed by whoever read it.
    OutputClosed,
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        Failure::Refused(Box::new(status), None)
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::BrokenPipe {
            Failure::OutputClosed
        } else {
            Failure::Other(error.to_string())
        }
    }
}

impl Failure {
    /// Nothing where nothing failed; one failure as it is.
    ///
    /// # Errors
    /// What failed.
    pub fn all(mut failures: Vec<Failure>) -> Result<(), Failure> {
        match failures.len() {
            0 | 1 => failures.pop().map_or(Ok(()), Err),
            _ => Err(Failure::Several(failures)),
        }
    }

    /// The exit code; see `args::EXIT_CODES`.
    pub fn code(&self) -> u8 {
        match self {
            Failure::OutputClosed => 0,
            Failure::Other(_) => 1,
            Failure::Usage(_) => 2,
            Failure::Manifest(_) => 3,
            Failure::Unreachable(_) | Failure::Untrusted(_) => 6,
            Failure::NodesFailed(_) => 7,
            Failure::TimedOut(_) => 8,
            Failure::Several(failures) => failures.first().map_or(1, Failure::code),
            // One of both sides speaks no TLS, or does not trust the other.
            Failure::Refused(status, _) if explain_call(status).is_some() => 6,
            Failure::Refused(status, _) => match status.code() {
                Code::InvalidArgument | Code::OutOfRange => 3,
                Code::NotFound => 4,
                Code::AlreadyExists | Code::Aborted | Code::FailedPrecondition => 5,
                Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled => 6,
                Code::Unknown if is_broken(status) => 6,
                _ => 1,
            },
        }
    }

    /// For standard error.
    pub fn text(&self) -> String {
        match self {
            Failure::OutputClosed => String::new(),
            Failure::Manifest(text)
            | Failure::NodesFailed(text)
            | Failure::TimedOut(text)
            | Failure::Untrusted(text)
            | Failure::Usage(text)
            | Failure::Other(text) => text.clone(),
            Failure::Several(failures) => failures.iter().map(Failure::text).collect::<Vec<_>>().join("\n"),
            Failure::Unreachable(text) => {
                format!("{text}\nhint: is a controller running there? Another address: --server, or WEIR_SERVER")
            }
            Failure::Refused(status, located) => refused(status, located.as_deref()),
        }
    }
}

/// Whether the connection broke in the middle of the call.
fn is_broken(status: &Status) -> bool {
    std::error::Error::source(status).is_some_and(|source| source.is::<tonic::transport::Error>())
}

fn refused(status: &Status, located: Option<&str>) -> String {
    if let Some(text) = explain_call(status) {
        return text;
    }
    if status.code() == Code::Unknown && is_broken(status) {
        return "the connection broke before the controller answered: whether it did what was asked is unknown\nhint: look \
                (weirctl get intents), and try again; is it a TLS port, which https:// speaks to?"
            .to_owned();
    }
    let details = status.get_error_details();
    // With one violated field the message often only says the same.
    let only = details.bad_request().and_then(|bad| match bad.field_violations.as_slice() {
        [one] => Some(format!("{}: {}", one.field, one.description)),
        _ => None,
    });
    let repeated = only.is_some_and(|only| only == status.message());
    let message = if repeated { "one field is invalid" } else { status.message() };
    let mut text = format!("{}: {message}", code_name(status.code()));
    // Writing to a String does not fail.
    if let Some(located) = located {
        let _infallible = write!(text, "\n{located}");
    } else if let Some(bad) = details.bad_request() {
        for violation in &bad.field_violations {
            let _infallible = write!(text, "\n  {}: {}", violation.field, violation.description);
        }
    }
    if let Some(info) = details.error_info() {
        for (key, value) in &info.metadata {
            let _infallible = write!(text, "\n  {key}: {value}");
        }
    }
    if let Some(delay) = details.retry_info().and_then(|info| info.retry_delay) {
        let _infallible = write!(text, "\n  retry in {delay:?}");
    }
    let hint = match status.code() {
        Code::NotFound => "weirctl get intents and weirctl nodes show what there is; other projects: -p PROJECT",
        Code::DeadlineExceeded | Code::Cancelled => "the controller did not answer in time; try again",
        Code::Aborted => "it was changed meanwhile: look at it (weirctl get -o yaml), and apply again",
        Code::AlreadyExists => {
            "an intent with this name exists, or is still being deleted (weirctl describe intent NAME)"
        }
        Code::Unauthenticated => {
            "the controller does not know who you are: --tls-cert names a certificate with an identity (docs/security.md)"
        }
        Code::PermissionDenied => "an administrator binds roles in the controller's --access file (docs/security.md)",
        Code::Unavailable => "it may pass: try again; if not, what is said above is where to look",
        _ => return text,
    };
    format!("{text}\nhint: {hint}")
}
