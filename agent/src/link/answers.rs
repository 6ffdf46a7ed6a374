//! Answers to the questions of controllers, in parts: a node with many settings must not end its session with one message that
//! is too large.

use prost::Message;
use tokio::sync::{mpsc, oneshot};
use weir_common::glob;
use weir_proto::v1::{self, query::Question, reply::Answer};

use super::to_wire;
use crate::{enforce::report::Report, measure::Meter, reconcile::Command};

/// A part ends with the row that brings it to this size, bytes; a controller takes messages of 16 MiB.
const PART: usize = 2 << 20;

/// The replies to a query; the last one says that it is.
pub(super) async fn to(
    query: v1::Query,
    commands: &mpsc::Sender<Command>,
    meter: &Meter,
    report: &Report,
) -> Vec<v1::Reply> {
    let found = match query.question {
        Some(Question::Explain(v1::ExplainQuery { intent, cgroup_path })) => {
            let matches = |path: &str| cgroup_path.is_empty() || glob::matches(&cgroup_path, path);
            Ok(explained(to_wire::explain(report, meter, &intent, matches)))
        }
        Some(Question::Workloads(v1::WorkloadsQuery { cgroup_path })) => workloads(cgroup_path, commands).await,
        None => Err("this agent does not know the question".to_owned()),
    };
    replies(query.query_id, found)
}

async fn workloads(pattern: String, commands: &mpsc::Sender<Command>) -> Result<Vec<Answer>, String> {
    let (reply, answer) = oneshot::channel();
    let asked = commands.send(Command::Workloads(pattern, reply)).await;
    let (Ok(()), Ok(all)) = (asked, answer.await) else { return Err("the agent is ending".to_owned()) };
    let rows = all.into_iter().map(|(cgroup, intents)| to_wire::workload(&cgroup, intents));
    let parts = parts(rows).into_iter();
    Ok(parts.map(|workloads| Answer::Workloads(v1::WorkloadsReply { workloads })).collect())
}

fn explained(reply: v1::ExplainReply) -> Vec<Answer> {
    let v1::ExplainReply { settings, without_setting } = reply;
    let of_settings = parts(settings).into_iter().map(|settings| v1::ExplainReply { settings, ..Default::default() });
    let of_rules =
        parts(without_setting).into_iter().map(|rows| v1::ExplainReply { without_setting: rows, ..Default::default() });
    of_settings.chain(of_rules).map(Answer::Explain).collect()
}

/// Rows in parts of a bounded size; one empty part where there is no row.
fn parts<T: Message>(rows: impl IntoIterator<Item = T>) -> Vec<Vec<T>> {
    let (mut parts, mut part, mut size) = (Vec::new(), Vec::new(), 0);
    for row in rows {
        if size >= PART {
            parts.push(std::mem::take(&mut part));
            size = 0;
        }
        size += row.encoded_len();
        part.push(row);
    }
    parts.push(part);
    parts
}

fn replies(query_id: i64, found: Result<Vec<Answer>, String>) -> Vec<v1::Reply> {
    match found {
        Err(error) => vec![v1::Reply { query_id, done: true, progress_percent: 100, error, answer: None }],
        Ok(parts) => {
            let count = parts.len();
            let reply = |(number, answer)| {
                let sent = number + 1;
                let progress_percent = i32::try_from(100 * sent / count).unwrap_or(100);
                let (done, error) = (sent == count, String::new());
                v1::Reply { query_id, done, progress_percent, error, answer: Some(answer) }
            };
            parts.into_iter().enumerate().map(reply).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(count: usize, bytes: usize) -> Vec<v1::ExplainedSetting> {
        let status = v1::SettingStatus { cgroup_path: "x".repeat(bytes), ..Default::default() };
        vec![v1::ExplainedSetting { status: Some(status), ..Default::default() }; count]
    }

    #[test]
    fn a_long_answer_comes_in_parts_that_a_controller_takes() {
        let reply = v1::ExplainReply { settings: rows(30, 1 << 20), without_setting: Vec::new() };
        let replies = replies(7, Ok(explained(reply)));
        assert!(replies.len() > 10);
        assert!(replies.iter().all(|reply| reply.query_id == 7 && reply.encoded_len() < 4 << 20));
        let (last, others) = replies.split_last().unwrap();
        assert!((last.done, last.progress_percent) == (true, 100) && others.iter().all(|reply| !reply.done));
        let count = |reply: &v1::Reply| match &reply.answer {
            Some(Answer::Explain(part)) => part.settings.len(),
            other => panic!("{other:?}"),
        };
        assert_eq!(replies.iter().map(count).sum::<usize>(), 30);
    }

    #[test]
    fn nothing_is_an_answer_too() {
        let replies = replies(1, Ok(explained(v1::ExplainReply::default())));
        assert!(replies.iter().all(|reply| reply.answer.is_some() && reply.error.is_empty()));
        assert_eq!(replies.iter().filter(|reply| reply.done).count(), 1);
    }
}
