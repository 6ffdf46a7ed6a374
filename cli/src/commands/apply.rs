//! apply: creates what is new, updates what differs, leaves alone what is equal.

use tonic::Code;
use weir_proto::v1;

use super::wait;
use crate::{
    args::{Apply, Output},
    client::Client,
    failure::Failure,
    manifest::Document,
    print,
};

/// Applies the documents in order, after the controller has checked all of them: where one is refused, none is stored.
///
/// # Errors
/// The first that is refused. One that is refused only when it is stored (changed by somebody else meanwhile) leaves those
/// before it applied.
pub async fn run(
    client: &mut Client,
    documents: Vec<Document>,
    options: &Apply,
    output: Output,
) -> Result<(), Failure> {
    if documents.len() > 1 && !options.dry_run {
        for document in &documents {
            one(client, document, true).await.map_err(|status| document.refusal(status))?;
        }
    }
    let mut results = Vec::new();
    for document in &documents {
        let done = one(client, document, options.dry_run).await;
        let (verb, intent) = done.map_err(|status| document.refusal(status))?;
        if output == Output::Table {
            let dry = if options.dry_run { " (dry run: nothing stored)" } else { "" };
            print::line(&format!("{} {} (generation {}){dry}", verb.word(), intent.name, intent.generation))?;
            for condition in intent.status.iter().flat_map(|status| &status.conditions) {
                print::line(&format!("  {}", crate::text::condition(condition)))?;
            }
        }
        results.push(intent);
    }
    let waited = if options.wait.wait && !options.dry_run {
        let names: Vec<&str> = results.iter().map(|intent| intent.name.as_str()).collect();
        wait::all_applied(client, &names, options.wait.timeout, output).await
    } else {
        Ok(())
    };
    if output != Output::Table {
        // After waiting, with what became of them.
        if options.wait.wait && !options.dry_run {
            for intent in &mut results {
                *intent = client.intent(&intent.name).await?;
            }
        }
        print::list("intents", &results, output)?;
    }
    waited
}

/// What an apply did to one intent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    Created,
    Updated,
    Unchanged,
}

impl Verb {
    fn word(self) -> &'static str {
        match self {
            Verb::Created => "created",
            Verb::Updated => "updated",
            Verb::Unchanged => "unchanged",
        }
    }
}

async fn one(
    client: &mut Client,
    document: &Document,
    validate_only: bool,
) -> Result<(Verb, v1::Intent), tonic::Status> {
    let wanted = &document.intent;
    let present = match client.intent(&wanted.name).await {
        Ok(intent) => Some(intent),
        Err(status) if status.code() == Code::NotFound => None,
        Err(status) => return Err(status),
    };
    let Some(present) = present else {
        let request = v1::CreateIntentRequest { intent: Some(wanted.clone()), validate_only, ..Default::default() };
        return Ok((Verb::Created, client.intents.create_intent(request).await?.into_inner()));
    };
    if present.delete_time.is_none() && present.spec == wanted.spec && present.labels == wanted.labels {
        return Ok((Verb::Unchanged, present));
    }
    // The etag that was just read: a change in between is not overwritten. One in the manifest is the writer's own wish.
    let etag = if wanted.etag.is_empty() { present.etag.clone() } else { wanted.etag.clone() };
    let intent = v1::Intent { etag, ..wanted.clone() };
    let request = v1::UpdateIntentRequest { intent: Some(intent), validate_only, ..Default::default() };
    let stored = client.intents.update_intent(request).await?.into_inner();
    // The controller fills in what the manifest leaves to it (scope, mode), so only it can tell that two specs are equal:
    // then it stores nothing, and the etag stays.
    let verb = if stored.etag == present.etag { Verb::Unchanged } else { Verb::Updated };
    Ok((verb, stored))
}
