//! A request to an agent's API.

use serde_json::Value;

use crate::socket::encoded;

/// A request to the agent's API.
#[derive(Debug, PartialEq)]
pub struct AgentRequest {
    pub method: &'static str,
    pub path: String,
    pub query: Vec<(&'static str, String)>,
    pub body: Option<Value>,
}

impl AgentRequest {
    pub fn get(path: &str, query: Vec<(&'static str, String)>) -> Self {
        AgentRequest { method: "GET", path: path.to_owned(), query, body: None }
    }

    pub fn path_and_query(&self) -> String {
        let pairs: Vec<String> = self.query.iter().map(|(name, value)| format!("{name}={}", encoded(value))).collect();
        if pairs.is_empty() { self.path.clone() } else { format!("{}?{}", self.path, pairs.join("&")) }
    }
}
