//! Questions to agents: each has an id within its session, a deadline, and an asker that may have gone.

use std::{collections::HashMap, time::Duration};

use tokio::sync::{mpsc, oneshot};
use weir_proto::v1;

use super::{Hub, remote::RemoteAsk};
use crate::model::NodeName;

/// How long an agent may take to answer.
const TIMEOUT: Duration = Duration::from_secs(5);
/// What the way over another replica may take more.
const ELSEWHERE: Duration = Duration::from_secs(2);
/// Questions that an agent may have open.
const MAX_OPEN: usize = 64;
/// Most rows of one answer, its parts joined.
const MAX_ROWS: usize = 200_000;

/// There is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    /// No session, or it ended before the answer.
    #[error("node `{0}` is out of contact")]
    Away(NodeName),
    /// The agent did not answer in time.
    #[error("node `{0}` did not answer within 5 s")]
    Timeout(NodeName),
    /// The agent does not know such questions.
    #[error("the agent of node `{0}` lacks {1}")]
    Unsupported(NodeName, &'static str),
    /// Too many questions are open.
    #[error("node `{0}` has too many open questions")]
    Busy(NodeName),
    /// The agent says why it has no answer.
    #[error("node `{0}`: {1}")]
    Refused(NodeName, String),
}

/// A question on its way to a session.
#[derive(Debug)]
pub(crate) struct Ask {
    question: v1::query::Question,
    answer: oneshot::Sender<Result<v1::reply::Answer, Failure>>,
}

impl Ask {
    /// The question, for who puts it elsewhere.
    pub(crate) fn question(&self) -> v1::query::Question {
        self.question.clone()
    }

    /// Answers it.
    pub(crate) fn answer(self, answer: Result<v1::reply::Answer, Failure>) {
        // The asker may have gone.
        let _gone = self.answer.send(answer);
    }
}

/// There is no answer, as far as the agent's side is concerned.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Too many questions are open.
    Busy,
    /// The agent, or the way to it, says why.
    Refused(String),
}

/// The way to a node's agent.
pub(super) enum Asks {
    /// Its session here.
    Here(mpsc::Sender<Ask>),
    /// The replica that serves it.
    Elsewhere(mpsc::Sender<RemoteAsk>),
}

impl Hub {
    /// Asks a node's agent, which must have the feature.
    ///
    /// # Errors
    /// See [`AskError`].
    pub(crate) async fn ask(
        &self,
        node: &NodeName,
        feature: &'static str,
        question: v1::query::Question,
    ) -> Result<v1::reply::Answer, AskError> {
        let (asks, features) = self.asks(node).ok_or_else(|| AskError::Away(node.clone()))?;
        if !features.contains(feature) {
            return Err(AskError::Unsupported(node.clone(), feature));
        }
        let (answer, answered) = oneshot::channel();
        let ask = Ask { question, answer };
        let (sent, within) = match asks {
            Asks::Here(asks) => (asks.try_send(ask).map_err(|error| is_full(&error)), TIMEOUT),
            Asks::Elsewhere(asks) => {
                (asks.try_send((node.clone(), ask)).map_err(|error| is_full(&error)), TIMEOUT + ELSEWHERE)
            }
        };
        sent.map_err(|full| if full { AskError::Busy(node.clone()) } else { AskError::Away(node.clone()) })?;
        match tokio::time::timeout(within, answered).await {
            Ok(Ok(Ok(answer))) => Ok(answer),
            Ok(Ok(Err(Failure::Busy))) => Err(AskError::Busy(node.clone())),
            Ok(Ok(Err(Failure::Refused(why)))) => Err(AskError::Refused(node.clone(), why)),
            Ok(Err(_)) => Err(AskError::Away(node.clone())),
            Err(_) => Err(AskError::Timeout(node.clone())),
        }
    }
}

/// Else it is closed.
fn is_full<T>(error: &mpsc::error::TrySendError<T>) -> bool {
    matches!(error, mpsc::error::TrySendError::Full(_))
}

/// The questions of one session.
#[derive(Debug, Default)]
pub(super) struct Open {
    next_id: i64,
    waiting: HashMap<i64, Waiting>,
}

#[derive(Debug)]
struct Waiting {
    answer: oneshot::Sender<Result<v1::reply::Answer, Failure>>,
    /// What came in parts so far.
    part: Option<v1::reply::Answer>,
}

impl Open {
    /// The query to send for a question; `None` where it was answered at once.
    pub(super) fn begin(&mut self, ask: Ask) -> Option<v1::Query> {
        self.waiting.retain(|_, waiting| !waiting.answer.is_closed());
        let Ask { question, answer } = ask;
        if self.waiting.len() >= MAX_OPEN {
            let _gone = answer.send(Err(Failure::Busy));
            return None;
        }
        let query_id = self.id();
        self.waiting.insert(query_id, Waiting { answer, part: None });
        Some(v1::Query { query_id, question: Some(question) })
    }

    /// Whether somebody waits for an answer.
    pub(super) fn is_awaited(&self) -> bool {
        self.waiting.values().any(|waiting| !waiting.answer.is_closed())
    }

    /// A query that nobody waits for: it shows whether the agent is alive.
    pub(super) fn probe(&mut self) -> v1::Query {
        let question = v1::query::Question::Workloads(v1::WorkloadsQuery { cgroup_path: "/".to_owned() });
        v1::Query { query_id: self.id(), question: Some(question) }
    }

    fn id(&mut self) -> i64 {
        self.next_id += 1;
        self.next_id
    }

    /// An answer or a part of one. Answers to nothing are left out: their asker may have gone.
    pub(super) fn reply(&mut self, reply: v1::Reply) {
        let v1::Reply { query_id, done, progress_percent: _, error, answer } = reply;
        let Some(waiting) = self.waiting.get_mut(&query_id).filter(|waiting| !waiting.answer.is_closed()) else {
            self.waiting.remove(&query_id);
            return;
        };
        if let Some(answer) = answer {
            waiting.part = Some(match waiting.part.take() {
                Some(part) => join(part, answer),
                None => answer,
            });
        }
        let too_long = waiting.part.as_ref().is_some_and(|part| rows(part) > MAX_ROWS);
        let error = if too_long { format!("the answer has more than {MAX_ROWS} rows: ask for less") } else { error };
        if !done && error.is_empty() {
            return;
        }
        if let Some(Waiting { answer, part }) = self.waiting.remove(&query_id) {
            let result = match part {
                _ if !error.is_empty() => Err(Failure::Refused(error)),
                Some(part) => Ok(part),
                None => Err(Failure::Refused("the answer is empty".to_owned())),
            };
            let _gone = answer.send(result);
        }
    }
}

/// Rows of a joined answer: what an agent sends without an end must not fill this process.
fn rows(answer: &v1::reply::Answer) -> usize {
    use v1::reply::Answer;
    match answer {
        Answer::Explain(reply) => reply.settings.len() + reply.without_setting.len(),
        Answer::Workloads(reply) => reply.workloads.len(),
    }
}

fn join(part: v1::reply::Answer, more: v1::reply::Answer) -> v1::reply::Answer {
    use v1::reply::Answer;
    match (part, more) {
        (Answer::Explain(mut part), Answer::Explain(more)) => {
            part.settings.extend(more.settings);
            part.without_setting.extend(more.without_setting);
            Answer::Explain(part)
        }
        (Answer::Workloads(mut part), Answer::Workloads(more)) => {
            part.workloads.extend(more.workloads);
            Answer::Workloads(part)
        }
        (_, more) => more,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workloads(path: &str) -> v1::reply::Answer {
        let workload = v1::Workload { cgroup_path: path.to_owned(), ..Default::default() };
        v1::reply::Answer::Workloads(v1::WorkloadsReply { workloads: vec![workload] })
    }

    fn ask() -> (Ask, oneshot::Receiver<Result<v1::reply::Answer, Failure>>) {
        let (answer, receiver) = oneshot::channel();
        (Ask { question: v1::query::Question::Workloads(v1::WorkloadsQuery::default()), answer }, receiver)
    }

    #[test]
    fn parts_are_joined_and_strangers_left_out() {
        let mut open = Open::default();
        let (question, mut answer) = ask();
        let id = open.begin(question).unwrap().query_id;
        let reply = |query_id, done, answer| v1::Reply { query_id, done, answer, ..Default::default() };
        open.reply(reply(id + 7, true, Some(workloads("/x"))));
        open.reply(reply(id, false, Some(workloads("/a"))));
        open.reply(reply(id, false, None));
        assert!(answer.try_recv().is_err());
        open.reply(reply(id, true, Some(workloads("/b"))));
        match answer.try_recv().unwrap().unwrap() {
            v1::reply::Answer::Workloads(reply) => assert_eq!(reply.workloads.len(), 2),
            other => panic!("{other:?}"),
        }
        open.reply(reply(id, true, None));
    }

    #[test]
    fn an_answer_without_an_end_is_cut_off() {
        let mut open = Open::default();
        let (question, mut answer) = ask();
        let query_id = open.begin(question).unwrap().query_id;
        let many = v1::WorkloadsReply { workloads: vec![v1::Workload::default(); MAX_ROWS / 2] };
        let part =
            || v1::Reply { query_id, answer: Some(v1::reply::Answer::Workloads(many.clone())), ..Default::default() };
        open.reply(part());
        open.reply(part());
        assert!(answer.try_recv().is_err());
        open.reply(part());
        assert!(matches!(answer.try_recv(), Ok(Err(Failure::Refused(why))) if why.contains("rows")));
        open.reply(part());
        assert!(!open.is_awaited());
    }

    #[test]
    fn parts_for_an_asker_that_left_are_not_kept() {
        let mut open = Open::default();
        let (question, answer) = ask();
        let query_id = open.begin(question).unwrap().query_id;
        drop(answer);
        open.reply(v1::Reply { query_id, answer: Some(workloads("/a")), ..Default::default() });
        assert!(open.waiting.is_empty());
    }

    #[test]
    fn the_number_of_open_questions_is_bounded_by_askers_that_still_wait() {
        let mut open = Open::default();
        let mut waiting = Vec::new();
        for _ in 0..MAX_OPEN {
            let (question, answer) = ask();
            assert!(open.begin(question).is_some());
            waiting.push(answer);
        }
        let (question, mut answer) = ask();
        assert!(open.begin(question).is_none());
        assert!(matches!(answer.try_recv(), Ok(Err(Failure::Busy))));
        waiting.pop();
        assert!(open.begin(ask().0).is_some());
    }
}
