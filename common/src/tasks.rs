//! Background tasks with a name and a policy for their death, and an orderly end.

use std::future::Future;

use tokio::task::JoinSet;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

/// What the death of a task means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnDeath {
    /// The process cannot do its work without it: the process ends with an error.
    EndProcess,
    /// It may end by itself; an error is logged.
    Continue,
}

/// A task ended that must not end.
#[derive(Debug, thiserror::Error)]
#[error("task `{name}` ended: {cause}")]
pub struct TaskDied {
    /// Name of the task.
    pub name: &'static str,
    /// What it died of.
    pub cause: String,
}

struct Ended {
    name: &'static str,
    policy: OnDeath,
    result: Result<(), String>,
}

/// The background tasks of a process.
#[derive(Default)]
pub struct TaskSet {
    tasks: JoinSet<Ended>,
    shutdown: CancellationToken,
}

impl TaskSet {
    /// An empty set; `shutdown` is cancelled when the process is to end.
    pub fn new(shutdown: CancellationToken) -> Self {
        TaskSet { tasks: JoinSet::new(), shutdown }
    }

    /// Starts a task. It should end soon after the set's token is cancelled; what it returns then is no death.
    pub fn spawn<F, E>(&mut self, name: &'static str, policy: OnDeath, future: F)
    where
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: std::fmt::Display + Send + 'static,
    {
        // The inner task turns a panic into a result that still has the name; it ends with the outer one.
        self.tasks.spawn(async move {
            let result = match AbortOnDropHandle::new(tokio::spawn(future)).await {
                Ok(Ok(())) => Ok(()),
                Ok(Err(error)) => Err(format!("{error:#}")),
                Err(join) if join.is_cancelled() => Ok(()),
                Err(join) => Err(format!("panicked: {join}")),
            };
            Ended { name, policy, result }
        });
    }

    /// Runs until shutdown is asked for and all tasks have ended, or `grace` has passed since; or until a critical task
    /// dies, which cancels the others.
    ///
    /// # Errors
    /// The critical task that died.
    pub async fn run(mut self, grace: std::time::Duration) -> Result<(), TaskDied> {
        let mut died = None;
        loop {
            let ended = tokio::select! {
                ended = self.tasks.join_next() => ended,
                () = self.shutdown.cancelled() => break,
            };
            let Some(Ok(ended)) = ended else { break };
            if let Err(cause) = &ended.result {
                tracing::error!(task = ended.name, %cause, "task failed");
            }
            if ended.policy == OnDeath::EndProcess && !self.shutdown.is_cancelled() {
                let cause = ended.result.err().unwrap_or_else(|| "without an error".to_owned());
                died = Some(TaskDied { name: ended.name, cause });
                self.shutdown.cancel();
                break;
            }
        }
        let drained = tokio::time::timeout(grace, async { while self.tasks.join_next().await.is_some() {} }).await;
        if drained.is_err() {
            tracing::warn!("some tasks did not end within {grace:?}");
            self.tasks.abort_all();
        }
        died.map_or(Ok(()), Err)
    }
}

/// A token that SIGINT and SIGTERM cancel.
///
/// # Errors
/// The handlers could not be installed.
pub fn shutdown_on_signals() -> std::io::Result<CancellationToken> {
    use tokio::signal::unix::{SignalKind, signal};
    let token = CancellationToken::new();
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let cancelled = token.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        cancelled.cancel();
    });
    Ok(token)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test]
    async fn a_dead_critical_task_ends_the_set_and_is_named() {
        let token = CancellationToken::new();
        let mut set = TaskSet::new(token.clone());
        set.spawn("fragile", OnDeath::EndProcess, async { Err::<(), _>("broken") });
        let waiting = token.clone();
        set.spawn("patient", OnDeath::EndProcess, async move {
            waiting.cancelled().await;
            Ok::<(), String>(())
        });
        let died = set.run(Duration::from_secs(5)).await.unwrap_err();
        assert_eq!((died.name, died.cause.as_str()), ("fragile", "broken"));
        assert!(token.is_cancelled());
    }

    #[tokio::test]
    async fn a_task_that_does_not_end_in_time_is_aborted() {
        struct Dropped(Option<tokio::sync::oneshot::Sender<()>>);
        impl Drop for Dropped {
            fn drop(&mut self) {
                let _gone = self.0.take().unwrap().send(());
            }
        }
        let (send, dropped) = tokio::sync::oneshot::channel();
        let token = CancellationToken::new();
        let mut set = TaskSet::new(token.clone());
        let held = Dropped(Some(send));
        set.spawn("deaf", OnDeath::EndProcess, async move {
            let _held = held;
            std::future::pending::<Result<(), String>>().await
        });
        token.cancel();
        set.run(Duration::from_millis(50)).await.unwrap();
        tokio::time::timeout(Duration::from_secs(10), dropped).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_panic_is_a_death_and_the_end_of_a_lesser_task_is_not() {
        let mut set = TaskSet::new(CancellationToken::new());
        set.spawn("lesser", OnDeath::Continue, async { Err::<(), _>("no matter") });
        set.spawn("panics", OnDeath::EndProcess, async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            assert_eq!(1, 2, "on purpose");
            Ok::<(), String>(())
        });
        assert_eq!(set.run(Duration::from_secs(5)).await.unwrap_err().name, "panics");
    }
}
