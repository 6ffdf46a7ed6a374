//! A stream of watch answers from one member.

use std::sync::Arc;

use etcd_client::{Client, Error, ResponseHeader, WatchOptions, WatchResponse, WatchStream};

use super::{Answer, Cluster, Failure, Kind, MESSAGE, Repeat};

/// An open watch of etcd's.
#[derive(Debug)]
pub(crate) struct Stream {
    cluster: Arc<Cluster>,
    /// The member that serves it.
    member: usize,
    stream: WatchStream,
}

/// A stream with its first answer.
struct Opened {
    stream: WatchStream,
    first: WatchResponse,
}

impl Answer for Opened {
    fn header(&self) -> Option<&ResponseHeader> {
        self.first.header()
    }
}

impl Stream {
    /// Opens a watch; its first answer comes with it.
    pub(crate) async fn open(
        cluster: &Arc<Cluster>,
        key: &str,
        options: &WatchOptions,
    ) -> Result<(Stream, WatchResponse), Failure> {
        let call = |client: Client| {
            let (key, options) = (key.to_owned(), options.clone());
            async move {
                let mut watches = client.watch_client().max_decoding_message_size(MESSAGE);
                let mut stream = watches.watch(key, Some(options)).await?;
                match stream.message().await? {
                    Some(first) => Ok(Opened { stream, first }),
                    None => Err(Error::WatchError("it ended at once".to_owned())),
                }
            }
        };
        let answered = cluster.call("watching", Repeat::Harmless, call).await?;
        let Opened { stream, first } = answered.answer;
        let stream = Stream { cluster: Arc::clone(cluster), member: answered.member, stream };
        stream.accept(&first)?;
        Ok((stream, first))
    }

    /// Waits for the next answer. Nothing is lost when the future is dropped. One that says that the watch is overtaken
    /// by a compaction is no error here.
    pub(crate) async fn message(&mut self) -> Result<WatchResponse, Failure> {
        match self.stream.message().await {
            Ok(Some(response)) => {
                self.accept(&response)?;
                Ok(response)
            }
            Ok(None) => {
                self.cluster.leave(self.member);
                let message = format!("etcd at {} ended the watch", self.cluster.address(self.member));
                Err(Failure { kind: Kind::Unknown, message })
            }
            Err(error) => {
                let failure = Failure::new(self.cluster.address(self.member), "watching", &error);
                if failure.kind.is_of_the_member() {
                    self.cluster.leave(self.member);
                }
                Err(failure)
            }
        }
    }

    fn accept(&self, response: &WatchResponse) -> Result<(), Failure> {
        self.cluster.check(self.member, response.header())?;
        if response.canceled() && response.compact_revision() == 0 {
            let status = tonic::Status::unknown(response.cancel_reason());
            return Err(Failure::of_status(self.cluster.address(self.member), "watching", &status));
        }
        Ok(())
    }
}
