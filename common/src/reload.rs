//! Values read from files that change while the process runs: certificates, rights. They are compared by content. What cannot
//! be read or understood keeps the value before, and is said once. Reads the files it is told to, and touches nothing else.

use std::{
    fmt,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
    time::Duration,
};

use tokio_util::sync::CancellationToken;

/// How often files are looked at.
pub const PERIOD: Duration = Duration::from_secs(3);

/// What files mean.
pub trait Source: Send + Sync + 'static {
    /// What they make.
    type Value: Send + Sync;
    /// Why they do not.
    type Error: fmt::Display;

    /// What is reloaded, for the log.
    fn what(&self) -> &'static str;
    /// The files.
    fn paths(&self) -> Vec<PathBuf>;
    /// Makes the value of the contents, which come in the order of the paths.
    ///
    /// # Errors
    /// A file cannot be read, or means nothing.
    fn make(&self, contents: &[std::io::Result<Vec<u8>>]) -> Result<Self::Value, Self::Error>;
}

/// Contents of the files as they were last looked at; `None` for one that could not be read.
type Contents = Vec<Option<Vec<u8>>>;

#[derive(Default)]
struct Seen {
    /// What the present value was made of.
    used: Contents,
    /// What the last look found where that was no good; the flag tells whether it was said.
    bad: Option<(Contents, bool)>,
}

/// A value that follows its files.
pub struct Reloaded<S: Source> {
    source: S,
    current: RwLock<Arc<S::Value>>,
    seen: Mutex<Seen>,
}

impl<S: Source> fmt::Debug for Reloaded<S> {
    // The contents may be keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reloaded").field("paths", &self.source.paths()).finish_non_exhaustive()
    }
}

impl<S: Source> Reloaded<S> {
    /// Reads the files for the first time.
    ///
    /// # Errors
    /// The source's.
    pub fn load(source: S) -> Result<Self, S::Error> {
        let (contents, used) = read(&source);
        let value = source.make(&contents)?;
        let seen = Mutex::new(Seen { used, bad: None });
        Ok(Reloaded { source, current: RwLock::new(Arc::new(value)), seen })
    }

    /// The present value.
    pub fn get(&self) -> Arc<S::Value> {
        // What is behind the lock is replaced whole: a panic elsewhere cannot leave half of it.
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at the files; whether there is a new value. Blocks for as long as small files take to read.
    pub fn check(&self) -> bool {
        let (contents, found) = read(&self.source);
        let mut seen = self.seen();
        if found == seen.used {
            seen.bad = None;
            return false;
        }
        // Several files are seldom replaced at the same instant: only what is still bad at the second look is said.
        let again = match &seen.bad {
            Some((bad, said)) if *bad == found => Some(*said),
            _ => None,
        };
        if again == Some(true) {
            return false;
        }
        match self.source.make(&contents) {
            Ok(value) => {
                *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(value);
                *seen = Seen { used: found, bad: None };
                tracing::info!("{}: the files changed, and are in use", self.source.what());
                true
            }
            Err(error) => {
                if again.is_some() {
                    tracing::error!(
                        "{}: the files changed, and are no good; those before stay in use: {error}",
                        self.source.what()
                    );
                }
                seen.bad = Some((found, again.is_some()));
                false
            }
        }
    }

    /// Looks at the files each `period` until `shutdown`.
    ///
    /// # Errors
    /// None.
    pub async fn follow(
        self: Arc<Self>,
        period: Duration,
        shutdown: CancellationToken,
    ) -> Result<(), std::convert::Infallible> {
        let mut ticks = tokio::time::interval(period);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = shutdown.cancelled() => return Ok(()),
            }
            let me = Arc::clone(&self);
            if let Err(error) = tokio::task::spawn_blocking(move || me.check()).await {
                tracing::error!("{}: the look at the files failed: {error}", self.source.what());
            }
        }
    }
}

fn read<S: Source>(source: &S) -> (Vec<std::io::Result<Vec<u8>>>, Contents) {
    let contents: Vec<_> = source.paths().iter().map(std::fs::read).collect();
    let found = contents.iter().map(|content| content.as_ref().ok().cloned()).collect();
    (contents, found)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Number(PathBuf);

    impl Source for Number {
        type Value = u32;
        type Error = String;

        fn what(&self) -> &'static str {
            "number"
        }

        fn paths(&self) -> Vec<PathBuf> {
            vec![self.0.clone()]
        }

        fn make(&self, contents: &[std::io::Result<Vec<u8>>]) -> Result<u32, String> {
            let content = contents[0].as_ref().map_err(ToString::to_string)?;
            String::from_utf8_lossy(content).trim().parse().map_err(|error| format!("{error}"))
        }
    }

    #[test]
    fn what_is_broken_or_gone_keeps_the_value_before() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("n");
        assert!(Reloaded::load(Number(path.clone())).is_err());
        std::fs::write(&path, "1").unwrap();
        let number = Reloaded::load(Number(path.clone())).unwrap();
        assert_eq!((number.check(), *number.get()), (false, 1));
        std::fs::write(&path, "x").unwrap();
        for said in [false, true, true] {
            assert_eq!((number.check(), *number.get()), (false, 1));
            assert_eq!(number.seen().bad.as_ref().map(|(_, said)| *said), Some(said));
        }
        std::fs::remove_file(&path).unwrap();
        assert_eq!((number.check(), *number.get()), (false, 1));
        std::fs::write(&path, "2").unwrap();
        assert_eq!((number.check(), *number.get()), (true, 2));
    }
}
