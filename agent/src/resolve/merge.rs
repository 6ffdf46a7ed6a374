//! Who wins a setting. PURE.

use super::Claim;

/// Adds a claim; of two claims of one rule (a cgroup that is chosen itself and as a part of another) the stricter stays.
pub(super) fn add(claims: &mut Vec<Claim>, claim: Claim) {
    match claims.iter_mut().find(|other| other.uid == claim.uid) {
        Some(other) if claim.value < other.value => *other = claim,
        Some(_) => {}
        None => claims.push(claim),
    }
}

/// Orders the claims, the winner first, and says why of each. The result does not depend on the order before.
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
    let Some((winner, losers)) = claims.split_first_mut() else { return };
    winner.won = true;
    winner.why = match losers.first() {
        _ if winner.observe => "only observed: nothing is written for it".to_owned(),
        None => "the only intent that wants this".to_owned(),
        Some(second) if second.observe => "the only intent that enforces this".to_owned(),
        Some(second) if winner.rank < second.rank => {
            format!("highest priority ({} against {})", winner.priority, second.priority)
        }
        Some(second) if winner.value < second.value => "the strictest among those of the highest priority".to_owned(),
        Some(_) => "the oldest among those that want the same".to_owned(),
    };
    for loser in losers {
        loser.won = false;
        loser.why = if loser.observe {
            "only observes".to_owned()
        } else if loser.rank > winner.rank {
            format!("{} has a higher priority ({} against {})", winner.intent, winner.priority, loser.priority)
        } else if loser.value > winner.value {
            format!("{} is stricter ({} against {})", winner.intent, winner.value, loser.value)
        } else {
            format!("{} wants the same and is older", winner.intent)
        };
    }
}
