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

/// Applies the documents in order.
///
/// # Errors
/// The first that is refused; those before it are applied.
pub async fn run(
    client: &mut Client,
    documents: Vec<Document>,
    options: &Apply,
    output: Output,
) -> Result<(), Failure> {
    let mut results = Vec::new();
    for document in &documents {
        let (verb, intent) = one(client, document, options.dry_run).await.map_err(|s| document.refusal(s))?;
        if output == Output::Table {
            let dry = if options.dry_run { " (nothing stored)" } else { "" };
            print::line(&format!("{verb} {} (generation {}){dry}", intent.name, intent.generation))?;
            for condition in intent.status.iter().flat_map(|status| &status.conditions) {
                print::line(&format!("  {}", crate::text::condition(condition)))?;
            }
        }
        results.push(intent);
    }
    if options.wait.wait && !options.dry_run {
        let deadline = tokio::time::Instant::now() + options.wait.timeout;
        for intent in &results {
            let left = deadline.saturating_duration_since(tokio::time::Instant::now());
            let status = wait::applied(client, &intent.name, left).await?;
            if output == Output::Table {
                let idle = status.nodes_matched - status.nodes_applied;
                let idle = if idle > 0 {
                    format!("; {idle} more have nothing to apply it to at present (weirctl describe intent)")
                } else {
                    String::new()
                };
                print::line(&format!("applied {} on {} node(s){idle}", intent.name, status.nodes_applied))?;
            }
        }
    }
    if output != Output::Table {
        let list = v1::ListIntentsResponse { intents: results, ..Default::default() };
        print::structured(&list, output)?;
    }
    Ok(())
}

async fn one(
    client: &mut Client,
    document: &Document,
    validate_only: bool,
) -> Result<(&'static str, v1::Intent), tonic::Status> {
    let wanted = &document.intent;
    let present = match client.intent(&wanted.name).await {
        Ok(intent) => Some(intent),
        Err(status) if status.code() == Code::NotFound => None,
        Err(status) => return Err(status),
    };
    let Some(present) = present else {
        let request = v1::CreateIntentRequest { intent: Some(wanted.clone()), validate_only, ..Default::default() };
        return Ok(("created", client.intents.create_intent(request).await?.into_inner()));
    };
    let same = |other: &v1::Intent| present.spec == other.spec && present.labels == other.labels;
    if present.delete_time.is_none() && same(wanted) {
        return Ok(("unchanged", present));
    }
    // The etag that was just read: a change in between is not overwritten. One in the manifest is the writer's own wish.
    let etag = if wanted.etag.is_empty() { present.etag.clone() } else { wanted.etag.clone() };
    let intent = v1::Intent { etag, ..wanted.clone() };
    // The controller fills in defaults: what would be stored tells whether anything changes.
    let dry = v1::UpdateIntentRequest { intent: Some(intent), validate_only: true, ..Default::default() };
    let stored = client.intents.update_intent(dry.clone()).await?.into_inner();
    if same(&stored) {
        return Ok(("unchanged", present));
    }
    if validate_only {
        return Ok(("updated", stored));
    }
    let request = v1::UpdateIntentRequest { validate_only: false, ..dry };
    Ok(("updated", client.intents.update_intent(request).await?.into_inner()))
}
