//! A client on rmcp, the official Rust SDK: uses every feature of the servers it visits.
#![allow(deprecated)] // sampling and roots are, and still in use

use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rmcp::model::*;
use rmcp::service::{NotificationContext, RequestContext, RunningService};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::{ClientHandler, ClientLifecycleMode, ClientServiceExt, RoleClient, ServiceError};
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const PATIENCE: Duration = Duration::from_secs(60); // for one visit
const MODERN: &str = "2026-07-28";

/// The person and the model behind the client, and what the server said.
#[derive(Clone)]
struct Person {
    revision: ProtocolVersion,
    progress: Arc<Mutex<Vec<f64>>>,
    told: mpsc::UnboundedSender<&'static str>,
}

impl ClientHandler for Person {
    async fn create_message(
        &self,
        _: CreateMessageRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<CreateMessageResult, ErrorData> {
        let content = json!({"model": "m", "role": "assistant", "content": {"type": "text", "text": "words"}});
        Ok(serde_json::from_value(content).expect("a result"))
    }

    async fn create_elicitation(
        &self,
        _: ElicitRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        Ok(ElicitResult::new(ElicitationAction::Accept).with_content(json!({"color": "red"})))
    }

    async fn list_roots(&self, _: RequestContext<RoleClient>) -> Result<ListRootsResult, ErrorData> {
        Ok(ListRootsResult::new(vec![Root::new("file:///home").with_name("home")]))
    }

    async fn on_progress(&self, params: ProgressNotificationParam, _: NotificationContext<RoleClient>) {
        self.progress.lock().unwrap().push(params.progress);
    }

    async fn on_resource_updated(&self, _: ResourceUpdatedNotificationParam, _: NotificationContext<RoleClient>) {
        let _ = self.told.send("updated");
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        let _ = self.told.send("changed");
    }

    fn get_info(&self) -> ClientConfig {
        let capabilities = json!({"sampling": {}, "elicitation": {"form": {}}, "roots": {"listChanged": true}});
        let about = json!({
            "protocolVersion": self.revision,
            "capabilities": capabilities,
            "clientInfo": {"name": "rmcp", "version": "1.0.0"},
        });
        serde_json::from_value(about).expect("a greeting")
    }
}

/// One connection, and what it showed.
struct Conversation<'a> {
    client: RunningService<RoleClient, Person>,
    visit: &'a Value,
    seen: &'a mut Map<String, Value>,
    progress: Arc<Mutex<Vec<f64>>>,
    told: mpsc::UnboundedReceiver<&'static str>,
}

impl Conversation<'_> {
    fn name(&self, name: &str) -> String {
        format!("{}{name}", self.visit["names"].as_str().unwrap_or_default())
    }

    fn uri(&self, uri: &str) -> String {
        format!("{}{uri}", self.visit["uris"].as_str().unwrap_or_default())
    }

    fn tells(&self, what: &str) -> bool {
        self.visit["told"].as_array().is_some_and(|told| told.contains(&json!(what)))
    }

    async fn call(&self, name: &str, arguments: Value) -> Result<String, ServiceError> {
        let arguments = arguments.as_object().cloned().unwrap_or_default();
        let params = CallToolRequestParams::new(self.name(name)).with_arguments(arguments);
        let result = json!(self.client.call_tool(params).await?);
        let mut words: Vec<&str> = Vec::new();
        if result["isError"] == json!(true) {
            words.push("isError");
        }
        words.extend(result["content"].as_array().into_iter().flatten().filter_map(|part| part["text"].as_str()));
        Ok(words.join(" "))
    }

    async fn tool_names(&self) -> Outcome<Value> {
        let tools = json!(self.client.list_all_tools().await?);
        Ok(ours(&tools, "name", self.visit["names"].as_str().unwrap_or_default()))
    }

    async fn use_tools(&mut self) -> Outcome<()> {
        self.seen.insert("tools".into(), self.tool_names().await?);
        let said = self.call("echo", json!({"value": "grüße"})).await?;
        self.seen.insert("echo".into(), json!(said));
        let unknown = match self.call("no-such-tool", json!({})).await {
            Err(ServiceError::McpError(error)) => json!(error.code),
            other => json!(other?),
        };
        self.seen.insert("unknown tool".into(), unknown);
        for name in ["fail", "steps", "elicit", "sample", "roots"] {
            let said = self.call(name, json!({})).await?;
            self.seen.insert(name.into(), json!(said));
        }
        while self.progress.lock().unwrap().len() < 3 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let steps = self.progress.lock().unwrap().clone();
        self.seen.insert("progress".into(), json!(steps));
        Ok(())
    }

    async fn use_resources(&mut self) -> Outcome<()> {
        let prefix = self.visit["uris"].as_str().unwrap_or_default();
        let resources = json!(self.client.list_all_resources().await?);
        let templates = json!(self.client.list_all_resource_templates().await?);
        self.seen.insert("resources".into(), ours(&resources, "uri", prefix));
        self.seen.insert("templates".into(), ours(&templates, "uriTemplate", prefix));
        for (feature, uri) in [("read", "memo:///one"), ("read by template", "memo:///by-id/7")] {
            let read = json!(self.client.read_resource(ReadResourceRequestParams::new(self.uri(uri))).await?);
            self.seen.insert(feature.into(), read["contents"][0]["text"].clone());
        }
        Ok(())
    }

    async fn use_prompts(&mut self) -> Outcome<()> {
        let prompts = json!(self.client.list_all_prompts().await?);
        let prefix = self.visit["names"].as_str().unwrap_or_default();
        self.seen.insert("prompts".into(), ours(&prompts, "name", prefix));
        let topic = json!({"topic": "tea"}).as_object().cloned().unwrap_or_default();
        let params = GetPromptRequestParams::new(self.name("greeting")).with_arguments(topic);
        let prompt = json!(self.client.get_prompt(params).await?);
        self.seen.insert("prompt".into(), prompt["messages"][0]["content"]["text"].clone());
        let values = self.client.complete_prompt_simple(self.name("greeting"), "topic", "mu").await?;
        self.seen.insert("completion".into(), json!(values));
        Ok(())
    }

    /// What the server tells by itself: on a subscription, or in the session.
    async fn be_told(&mut self) -> Outcome<()> {
        let uri = self.uri("memo:///one");
        let mut subscription = None;
        if self.visit["revision"] == MODERN {
            let mut wanted = json!({"toolsListChanged": self.tells("changes")});
            if self.tells("updated") {
                wanted["resourceSubscriptions"] = json!([uri]);
            }
            subscription = Some(self.client.listen(serde_json::from_value(wanted)?).await?);
        } else if self.tells("updated") {
            self.client.subscribe(SubscribeRequestParams::new(uri)).await?;
        }
        if self.tells("updated") {
            self.call("touch", json!({})).await?;
            self.hear("updated", &mut subscription).await?;
            self.seen.insert("updated".into(), json!(true));
        }
        if self.tells("changes") {
            for feature in ["tools after one came", "tools after it left"] {
                let before = self.tool_names().await?;
                self.call("change", json!({})).await?;
                let mut names = before.clone();
                while names == before {
                    // Behind an aggregate, what is told may be a change of another server.
                    self.hear("changed", &mut subscription).await?;
                    names = self.tool_names().await?;
                }
                self.seen.insert(feature.into(), names);
            }
        }
        Ok(())
    }

    async fn hear(&mut self, what: &str, subscription: &mut Option<rmcp::service::Subscription>) -> Outcome<()> {
        loop {
            let heard = match subscription {
                Some(subscription) => match subscription.next().await?.ok_or("the subscription ended")? {
                    ServerNotification::ToolListChangedNotification(_) => "changed",
                    ServerNotification::ResourceUpdatedNotification(_) => "updated",
                    _ => "else",
                },
                None => self.told.recv().await.ok_or("nobody tells anything")?,
            };
            if heard == what {
                return Ok(());
            }
        }
    }
}

/// The names of this server in a list, as it calls them itself.
fn ours(listed: &Value, key: &str, prefix: &str) -> Value {
    let names = listed.as_array().into_iter().flatten().filter_map(|item| item[key].as_str()?.strip_prefix(prefix));
    let mut names: Vec<&str> = names.collect();
    names.sort_unstable();
    json!(names)
}

async fn converse(visit: &Value, seen: &mut Map<String, Value>) -> Outcome<()> {
    let revision: ProtocolVersion = serde_json::from_value(visit["revision"].clone())?;
    let lifecycle = match visit["revision"] == MODERN {
        true => ClientLifecycleMode::Discover { preferred_versions: vec![revision.clone()] },
        false => ClientLifecycleMode::Initialize,
    };
    let (tell, told) = mpsc::unbounded_channel();
    let progress = Arc::new(Mutex::new(Vec::new()));
    let person = Person { revision, progress: progress.clone(), told: tell };
    let transport = StreamableHttpClientTransport::from_uri(visit["url"].as_str().unwrap_or_default());
    let client = person.serve_with_lifecycle(transport, lifecycle).await?;
    let spoken = json!(client.peer_info())["protocolVersion"].clone();
    seen.insert("revision".into(), spoken);
    let mut conversation = Conversation { client, visit, seen, progress, told };
    conversation.use_tools().await?;
    conversation.use_resources().await?;
    conversation.use_prompts().await?;
    conversation.be_told().await?;
    conversation.client.cancel().await?;
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome<()> {
    let visits: Vec<Value> = serde_json::from_str(&std::env::args().nth(1).ok_or("visits are missing")?)?;
    let mut all = Vec::new();
    for visit in &visits {
        let mut seen = Map::new();
        match tokio::time::timeout(PATIENCE, converse(visit, &mut seen)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => drop(seen.insert("broken".into(), json!(error.to_string()))),
            Err(late) => drop(seen.insert("broken".into(), json!(late.to_string()))),
        }
        all.push(seen);
    }
    println!("{}", json!(all));
    Ok(())
}
