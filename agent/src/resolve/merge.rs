//! Who wins a setting. PURE.

use super::Claim;

/// Adds a claim; of two claims of one rule (a cgroup that is chosen itself and as a part of another) the stricter stays.
/// Rules come one after the other, so that another claim of the same rule can only be the last.
pub(super) fn add(claims: &mut Vec<Claim>, claim: Claim) {
    match claims.last_mut().filter(|other| other.uid == claim.uid) {
        Some(other) if claim.value < other.value => *other = claim,
        Some(_) => {}
        None => claims.push(claim),
    }
}

/// Orders the claims, the winner first. The result does not depend on the order before.
pub(super) fn decide(claims: &mut [Claim]) {
    claims.sort_by(|a, b| {
        (a.observe, a.rank, a.value, a.create_revision, &a.uid).cmp(&(
            b.observe,
            b.rank,
            b.value,
            b.create_revision,
            &b.uid,
        ))
    });
    for (index, claim) in claims.iter_mut().enumerate() {
        claim.won = index == 0;
    }
}

/// Why the claim at `index` was taken or not, one sentence; of claims that were decided. Made when somebody asks: a setting
/// can have a thousand.
pub fn why(claims: &[Claim], index: usize) -> String {
    let (Some(winner), Some(claim)) = (claims.first(), claims.get(index)) else { return String::new() };
    if index > 0 {
        return if claim.observe {
            "only observes".to_owned()
        } else if claim.rank > winner.rank {
            format!("{} has a higher priority ({} against {})", winner.intent, winner.priority, claim.priority)
        } else if claim.value > winner.value {
            format!("{} is stricter ({} against {})", winner.intent, winner.value, claim.value)
        } else {
            format!("{} wants the same and is older", winner.intent)
        };
    }
    match claims.get(1) {
        _ if winner.observe => "only observed: nothing is written for it".to_owned(),
        None => "the only intent that wants this".to_owned(),
        Some(second) if second.observe => "the only intent that enforces this".to_owned(),
        Some(second) if winner.rank < second.rank => {
            format!("highest priority ({} against {})", winner.priority, second.priority)
        }
        Some(second) if winner.value < second.value => "the strictest among those of the highest priority".to_owned(),
        Some(_) => "the oldest among those that want the same".to_owned(),
    }
}
