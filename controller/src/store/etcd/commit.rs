//! A transaction of the store as one of etcd's.

use etcd_client::{Client, Compare, CompareOp, GetOptions, TxnOp, TxnOpResponse, TxnResponse};

use super::{Keys, cluster::Cluster, cluster::Repeat, header_revision, identity::Identity, revision, to_etcd};
use crate::store::{CommitError, Op, Precondition, Revision, StoreError, Txn};

pub(super) async fn commit(
    cluster: &Cluster,
    keys: &Keys,
    identity: &Identity,
    txn: Txn,
) -> Result<Revision, CommitError> {
    if let Some(key) = txn.repeated_key() {
        return Err(CommitError::RepeatedKey(key.to_owned()));
    }
    let request = translate(keys, identity, &txn);
    let call = |client: Client| {
        let request = request.clone();
        async move { client.kv_client().txn(request).await }
    };
    let answer = cluster.call("committing", Repeat::Never, call).await.map_err(StoreError::from)?.answer;
    if answer.succeeded() {
        return Ok(header_revision(&answer)?);
    }
    Err(conflict(identity, &txn, &answer))
}

fn translate(keys: &Keys, identity: &Identity, txn: &Txn) -> etcd_client::Txn {
    let conditions = txn.preconditions.iter().map(|precondition| {
        let key = keys.physical(precondition.key());
        match precondition {
            Precondition::Absent(_) => Compare::create_revision(key, CompareOp::Equal, 0),
            Precondition::ModRevision(_, at) => Compare::mod_revision(key, CompareOp::Equal, to_etcd(*at)),
            Precondition::CreatedAt(_, at) => Compare::create_revision(key, CompareOp::Equal, to_etcd(*at)),
        }
    });
    let compares: Vec<Compare> = identity.compares(keys).into_iter().chain(conditions).collect();
    let changes: Vec<TxnOp> = txn
        .ops
        .iter()
        .map(|op| match op {
            Op::Put(key, value) => TxnOp::put(keys.physical(key), value.clone(), None),
            Op::Delete(key) => TxnOp::delete(keys.physical(key), None),
        })
        .collect();
    // Where a condition does not hold: what is there instead, at the same revision.
    let found = |precondition: &Precondition| {
        TxnOp::get(keys.physical(precondition.key()), Some(GetOptions::new().with_keys_only()))
    };
    let instead: Vec<TxnOp> = Identity::looks(keys).into_iter().chain(txn.preconditions.iter().map(found)).collect();
    etcd_client::Txn::new().when(compares).and_then(changes).or_else(instead)
}

/// The first condition that does not hold.
fn conflict(identity: &Identity, txn: &Txn, answer: &TxnResponse) -> CommitError {
    let mut answers = answer.op_responses();
    let conditions = answers.split_off(answers.len().min(2));
    if let Err(failure) = identity.judge(&answers) {
        return StoreError::from(failure).into();
    }
    for (precondition, response) in txn.preconditions.iter().zip(conditions) {
        let TxnOpResponse::Get(get) = response else { break };
        let found = get.kvs().first().map(|kv| (revision(kv.create_revision()), revision(kv.mod_revision())));
        if !precondition.holds(found) {
            let current = found.map(|(_, modified)| modified);
            return CommitError::Conflict { key: precondition.key().to_owned(), current };
        }
    }
    StoreError::Damaged("etcd refused a transaction of which every condition holds".to_owned()).into()
}
