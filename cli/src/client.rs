//! The connection to a controller, and the calls that several commands make.

use std::{sync::Arc, time::Duration};

use weir_common::tls::{ClientFiles, ClientTls, Connection, Remote, TokenFile};
use weir_proto::v1::{self, fleet_service_client::FleetServiceClient, intent_service_client::IntentServiceClient};

use crate::{args::Tls, failure::Failure};

/// Longest time for a connection, and for a single answer.
const CONNECT: Duration = Duration::from_secs(5);
const ANSWER: Duration = Duration::from_secs(20);
const PAGE: i32 = 500;
/// Between two attempts of a command that waits.
const AGAIN: Duration = Duration::from_secs(1);
/// Largest answer, bytes.
const MAX_MESSAGE: usize = 64 * 1024 * 1024;

/// Clients of one controller.
pub struct Client {
    /// Intents.
    pub intents: IntentServiceClient<Connection>,
    /// Fleet.
    pub fleet: FleetServiceClient<Connection>,
}

impl Client {
    /// Connects.
    ///
    /// # Errors
    /// The address is none, the files of TLS are no good, nobody answers there, or a certificate is refused.
    pub async fn connect(server: &str, tls: &Tls) -> Result<Client, Failure> {
        let Tls { ca, certificate, key, server_name, token_file } = tls;
        let address = if server.contains("://") { server.to_owned() } else { format!("http://{server}") };
        let pair = match (certificate, key) {
            (Some(certificate), Some(key)) => Some((certificate.clone(), key.clone())),
            (None, None) => None,
            _ => return Err(Failure::Usage("--tls-cert and --tls-key go together".to_owned())),
        };
        // Where they come from the environment and the address is plain, nothing is read.
        let files = ca.clone().filter(|_| address.starts_with("https://")).map(|ca| ClientFiles { ca, pair });
        let token = token_file.as_deref().map(TokenFile::new);
        let tls = files.map(ClientTls::load).transpose().map_err(|error| Failure::Usage(error.to_string()))?;
        let remote = Remote::new(&address, tls.map(Arc::new), server_name.as_deref())
            .map_err(|error| Failure::Usage(error.to_string()))?
            .with_token(token)
            .map_err(|error| Failure::Usage(error.to_string()))?
            .map(|endpoint| endpoint.connect_timeout(CONNECT).timeout(ANSWER));
        let channel = remote.connect().await.map_err(|error| {
            let text = error.to_string();
            if error.is_refusal() { Failure::Untrusted(text) } else { Failure::Unreachable(text) }
        })?;
        Ok(Client {
            intents: IntentServiceClient::new(channel.clone()).max_decoding_message_size(MAX_MESSAGE),
            fleet: FleetServiceClient::new(channel).max_decoding_message_size(MAX_MESSAGE),
        })
    }

    /// The same, and where nobody answers it tries again for as long as that: for commands that wait for things to come up.
    ///
    /// # Errors
    /// As for `connect`; nobody answered in time.
    pub async fn connect_within(server: &str, tls: &Tls, patience: Duration) -> Result<Client, Failure> {
        let deadline = tokio::time::Instant::now() + patience;
        loop {
            match Client::connect(server, tls).await {
                Err(Failure::Unreachable(_)) if tokio::time::Instant::now() + AGAIN < deadline => {
                    tokio::time::sleep(AGAIN).await;
                }
                done => return done,
            }
        }
    }

    /// One intent.
    ///
    /// # Errors
    /// The controller's.
    pub async fn intent(&mut self, name: &str) -> Result<v1::Intent, tonic::Status> {
        Ok(self.intents.get_intent(v1::GetIntentRequest { name: name.to_owned() }).await?.into_inner())
    }

    /// All intents of a project.
    ///
    /// # Errors
    /// The controller's.
    pub async fn all_intents(&mut self, project: &str) -> Result<Vec<v1::Intent>, tonic::Status> {
        let mut request =
            v1::ListIntentsRequest { parent: format!("projects/{project}"), page_size: PAGE, ..Default::default() };
        let mut all = Vec::new();
        loop {
            let page = self.intents.list_intents(request.clone()).await?.into_inner();
            all.extend(page.intents);
            if page.next_page_token.is_empty() {
                return Ok(all);
            }
            request.page_token = page.next_page_token;
        }
    }

    /// All nodes, and the fleet's directive.
    ///
    /// # Errors
    /// The controller's.
    pub async fn all_nodes(&mut self) -> Result<(Vec<v1::Node>, v1::Directive), tonic::Status> {
        let mut request = v1::ListNodesRequest { page_size: PAGE, ..Default::default() };
        let mut all = Vec::new();
        loop {
            let page = self.fleet.list_nodes(request.clone()).await?.into_inner();
            let directive = page.fleet_directive();
            all.extend(page.nodes);
            if page.next_page_token.is_empty() {
                return Ok((all, directive));
            }
            request.page_token = page.next_page_token;
        }
    }

    /// Reports of intents on nodes; empty names mean all.
    ///
    /// # Errors
    /// The controller's.
    pub async fn statuses(&mut self, intent: &str, node: &str) -> Result<Vec<v1::IntentNodeStatus>, tonic::Status> {
        let mut request = v1::ListIntentNodeStatusesRequest {
            intent: intent.to_owned(),
            node: node.to_owned(),
            page_size: PAGE,
            ..Default::default()
        };
        let mut all = Vec::new();
        loop {
            let page = self.fleet.list_intent_node_statuses(request.clone()).await?.into_inner();
            all.extend(page.statuses);
            if page.next_page_token.is_empty() {
                return Ok(all);
            }
            request.page_token = page.next_page_token;
        }
    }
}
