//! delete: asks for deletion, and waits until no node holds the intent.

use tokio::time::Instant;
use weir_proto::v1;

use super::wait;
use crate::{args::Delete, client::Client, failure::Failure, manifest, names, print};

/// The intents that are meant.
///
/// # Errors
/// A manifest cannot be read, or the words are not `intent NAME…`.
pub fn names(options: &Delete, project: &str) -> Result<Vec<String>, Failure> {
    if !options.files.is_empty() {
        let documents = manifest::read(&options.files, project)?;
        return Ok(documents.into_iter().map(|document| document.intent.name).collect());
    }
    match options.names.split_first() {
        Some((kind, [])) if kind == "intent" || kind == "intents" => {
            Err(Failure::Usage("which one? weirctl delete intent NAME".to_owned()))
        }
        Some((kind, rest)) if kind == "intent" || kind == "intents" => {
            Ok(rest.iter().map(|name| names::intent(name, project)).collect())
        }
        _ => Err(Failure::Usage("only intents can be deleted: weirctl delete intent NAME".to_owned())),
    }
}

/// Deletes the intents; with `--wait`, returns when all are gone.
///
/// # Errors
/// The first that is refused; the others are deleted nevertheless.
pub async fn run(client: &mut Client, names: Vec<String>, options: &Delete) -> Result<(), Failure> {
    let mut asked = Vec::new();
    let mut failures = Vec::new();
    for name in names {
        let request = v1::DeleteIntentRequest { name: name.clone(), force: options.force, ..Default::default() };
        match client.intents.delete_intent(request).await {
            Ok(intent) => {
                print::line(&format!("deleting {name}"))?;
                asked.push((name, intent.into_inner().uid));
            }
            Err(status) => failures.push(Failure::from(status)),
        }
    }
    if options.wait.wait {
        let deadline = Instant::now() + options.wait.timeout;
        for (name, uid) in asked {
            match wait::gone(client, &name, &uid, deadline, options.wait.timeout).await {
                Ok(()) => print::line(&format!("gone {name}"))?,
                Err(failure) => failures.push(failure),
            }
        }
    }
    Failure::all(failures)
}
