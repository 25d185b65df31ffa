//! A client may lower its own priority freely and raise it only as far as the server allows.

use crate::harness::{Server, Setup, chat, completion};
use serde_json::{Value, json};

async fn ignored(server: &Server, priority: Value) -> [Option<String>; 2] {
    let fields = json!({"priority": priority, "max_tokens": 2});
    let replies = [
        server.connect().await.post("/v1/chat/completions", &chat(fields.clone())).await,
        server.connect().await.post("/v1/completions", &completion(fields)).await,
    ];
    replies.map(|reply| {
        assert_eq!(reply.status, 200, "{}", reply.text());
        reply.header("x-throng-ignored").map(str::to_owned)
    })
}

#[tokio::test]
async fn a_priority_is_raised_to_the_servers_limit() {
    let named = || [Some("priority".to_owned()), Some("priority".to_owned())];
    let server = Server::start(Setup::default()).await;
    assert_eq!(ignored(&server, json!(-1)).await, named());
    assert_eq!(ignored(&server, json!(i32::MIN)).await, named());
    for harmless in [json!(0), json!(7), json!(i32::MAX), Value::Null] {
        assert_eq!(ignored(&server, harmless).await, [None, None]);
    }
    let mut setup = Setup::default();
    setup.config.access.most_urgent_priority = -5;
    let server = Server::start(setup).await;
    assert_eq!(ignored(&server, json!(-5)).await, [None, None]);
    assert_eq!(ignored(&server, json!(-6)).await, named());
}
