//! Whole responses: the request's servers list their tools, the model's calls run, the next turn has their
//! results.

use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};
use throng_api::answer::{AnswerEvent, CallFailure, ChoiceEnd, Delta, ServedEvent};
use throng_api::responses::{CreateRequest, Item, TurnContext};
use throng_api::spec::{Input, Role};
use throng_api::{ApiError, ReadOptions};
use throng_core::fleet::replica::Timing;
use throng_core::request::FinishReason;
use throng_tools::{Called, Observed, PendingCall, Pins, Session, Toolbox, ToolsConfig, TurnOutcome};

use crate::mcp_server;

fn request(tools: Value, more: Value) -> CreateRequest {
    let mut body = json!({"model": "m", "input": "Say hi loudly.", "tools": tools});
    for (key, value) in more.as_object().expect("an object") {
        body[key] = value.clone();
    }
    CreateRequest::parse(body.to_string().as_bytes(), &ReadOptions::default()).expect("a request")
}

fn hosted(origin: &str) -> ToolsConfig {
    ToolsConfig { hosted_origins: vec![origin.to_owned()], ..ToolsConfig::default() }
}

fn server(origin: &str) -> Value {
    json!([{"type": "mcp", "server_label": "voice", "server_url": format!("{origin}/mcp"), "require_approval": "never"}])
}

fn ended(deltas: Vec<Delta>) -> AnswerEvent {
    let end = ChoiceEnd {
        reason: FinishReason::Stop { token: None },
        stop: None,
        is_filtered: false,
        has_calls: true,
        timing: Timing::default(),
    };
    AnswerEvent::Finished { choice_idx: 0, deltas, end }
}

/// A turn of the model that calls these tools.
fn calls(calls: &[(&str, Value)]) -> AnswerEvent {
    let mut deltas = Vec::new();
    for (idx, (name, arguments)) in (0..).zip(calls) {
        deltas.push(Delta::CallBegin { call_idx: idx, id: format!("call_{idx}"), name: (*name).to_owned() });
        deltas.push(Delta::CallArguments { call_idx: idx, fragment: arguments.to_string() });
    }
    ended(deltas)
}

/// Runs the calls of a turn.
async fn run(session: &mut Session, event: AnswerEvent) -> Vec<Result<String, CallFailure>> {
    let Observed::Calls(AnswerEvent::Served(ServedEvent::TurnEnded { .. }), pending) = session.observe(event)
    else {
        panic!("calls that run here");
    };
    let mut results = Vec::new();
    for call in pending {
        let Called { call_idx, result, .. } = call.run().await;
        session.settle(call_idx, result.clone());
        results.push(result);
    }
    results
}

/// The messages of the session's next request, as role and text, and the names of the tools that it offers.
fn prompt(session: &Session) -> (Vec<(Role, String)>, Vec<String>) {
    let (request, context) = session.next_request();
    let (request, _) = request.into_request(&context).expect("a request");
    let Input::Chat(chat) = request.spec.input else { panic!("a chat") };
    let text = |message: &throng_api::spec::Message| {
        let calls = message.tool_calls.iter().map(|call| format!("<{}>", call.name)).collect::<String>();
        (message.role, format!("{}{calls}", message.text().unwrap_or_default()))
    };
    let names = chat.conversation.tools.iter().filter_map(|tool| tool["function"]["name"].as_str());
    (chat.conversation.messages.iter().map(text).collect(), names.map(str::to_owned).collect())
}

async fn begin(config: &ToolsConfig, request: CreateRequest) -> Result<Session, ApiError> {
    let toolbox = Toolbox::open(config).expect("a toolbox");
    Ok(Session::begin(&toolbox, request, &TurnContext::default()).await?.0)
}

#[tokio::test]
async fn the_model_is_offered_tools_and_told_what_they_gave() {
    let (origin, seen) = mcp_server::start().await;
    let mut tools = server(&origin);
    tools[0]["authorization"] = "secret".into();
    tools[0]["allowed_tools"] = json!(["shout", "fail"]);
    let mut session = begin(&hosted(&origin), request(tools, json!({}))).await.expect("a session");
    let (messages, names) = prompt(&session);
    assert_eq!(names, ["voice__shout", "voice__fail"]);
    assert_eq!(messages.len(), 1);
    let event = calls(&[("voice__shout", json!({"text": "hi"})), ("voice__fail", json!({}))]);
    let results = run(&mut session, event).await;
    assert_eq!(results[0], Ok("HI".to_owned()));
    assert!(matches!(&results[1], Err(CallFailure::Execution { .. })), "{results:?}");
    assert!(matches!(session.end_turn(), TurnOutcome::Next));
    let (messages, _) = prompt(&session);
    let told: Vec<&str> = messages.iter().map(|(_, text)| text.as_str()).collect();
    let expected = ["Say hi loudly.", "<voice__shout><voice__fail>", "HI", "The call failed: it is broken"];
    assert_eq!(told, expected);
    assert_eq!(seen.calls.lock().expect("no panic")[0], r#"shout {"text":"hi"}"#);
    assert_eq!(seen.authorization.lock().expect("no panic").as_deref(), Some("Bearer secret"));
    assert!(matches!(session.observe(ended(Vec::new())), Observed::Event(_)), "no more calls");
}

#[tokio::test]
async fn a_server_that_the_operator_does_not_list_is_not_asked() {
    let (origin, seen) = mcp_server::start().await;
    let other = "https://mcp.example.org";
    let error = begin(&hosted(other), request(server(&origin), json!({}))).await.expect_err("not listed");
    assert_eq!(error.param(), Some("tools[0].server_url"));
    let tools = json!([{"type": "mcp", "server_label": "voice"}]);
    let error = begin(&hosted(other), request(tools, json!({}))).await.expect_err("no such server");
    assert_eq!(error.param(), Some("tools[0].server_label"));
    assert!(seen.calls.lock().expect("no panic").is_empty());
}

#[tokio::test]
async fn a_request_that_its_server_refuses_leaves_the_server_to_others() {
    let (origin, _) = mcp_server::start().await;
    let toolbox = Toolbox::open(&hosted(&origin)).expect("a toolbox");
    let mut absent = server(&origin);
    absent[0]["server_url"] = format!("{origin}/absent").into();
    for _ in 0..10 {
        let asked = request(absent.clone(), json!({}));
        let error = Session::begin(&toolbox, asked, &TurnContext::default()).await.expect_err("absent");
        assert_eq!((error.status().as_u16(), error.code()), (424, "tool_server_unavailable"));
    }
    let asked = request(server(&origin), json!({}));
    Session::begin(&toolbox, asked, &TurnContext::default()).await.expect("another path of the same origin");
}

#[tokio::test]
async fn errors_name_neither_the_address_of_a_server_nor_types() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/secret-path?key=secret", listener.local_addr().expect("an address"));
    let router = axum::Router::new();
    tokio::spawn(async move { axum::serve(listener, router).await });
    let closed = "http://127.0.0.1:9/secret-path?key=secret".to_owned();
    let folder = tempfile::tempdir().expect("a folder");
    for (url, expected) in [(url, "HTTP 404"), (closed, "its address")] {
        let configured =
            throng_tools::ServerConfig { name: "voice".to_owned(), url: Some(url), ..Default::default() };
        let pins = Some(folder.path().join("pins.json"));
        let config = ToolsConfig { pins, server: vec![configured], ..ToolsConfig::default() };
        let tools = json!([{"type": "mcp", "server_label": "voice"}]);
        let error = begin(&config, request(tools, json!({}))).await.expect_err("not there");
        let told = error.message();
        assert!(told.contains(expected), "{told}");
        assert!(!told.contains("secret") && !told.contains("rmcp"), "{told}");
    }
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let (inner, _) = mcp_server::start().await;
    let to = format!("{inner}/mcp");
    let redirect = axum::routing::any(move || async move { axum::response::Redirect::temporary(&to) });
    let router = axum::Router::new().route("/mcp", redirect);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let origin = format!("http://{}", listener.local_addr().expect("an address"));
    tokio::spawn(async move { axum::serve(listener, router).await });
    let error = begin(&hosted(&origin), request(server(&origin), json!({}))).await.expect_err("a redirect");
    assert_eq!((error.status().as_u16(), error.code()), (424, "tool_server_unavailable"));
}

#[tokio::test]
async fn changed_descriptions_of_the_operators_servers_are_refused() {
    let (origin, seen) = mcp_server::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let pins = folder.path().join("pins.json");
    let configured = throng_tools::ServerConfig {
        name: "voice".to_owned(),
        url: Some(format!("{origin}/mcp")),
        ..Default::default()
    };
    let config = ToolsConfig { pins: Some(pins.clone()), server: vec![configured], ..ToolsConfig::default() };
    let tools = || json!([{"type": "mcp", "server_label": "voice"}]);
    let error = begin(&config, request(tools(), json!({}))).await.expect_err("nothing is approved");
    assert_eq!((error.status().as_u16(), error.code()), (403, "tools_not_approved"));
    let listed = Toolbox::open(&config).expect("a toolbox").list("voice").await.expect("tools");
    let mut approved = Pins::default();
    approved.approve("voice", listed.tools.iter().map(|(tool, _)| tool));
    approved.write(&pins).expect("written");
    let mut session = begin(&config, request(tools(), json!({}))).await.expect("approved");
    assert_eq!(
        run(&mut session, calls(&[("voice__shout", json!({"text": "a"}))])).await,
        [Ok("A".to_owned())]
    );
    seen.is_changed.store(true, Ordering::SeqCst);
    let error = begin(&config, request(tools(), json!({}))).await.expect_err("changed");
    assert!(error.message().contains("the description of 'shout' has changed"), "{error}");
}

#[tokio::test]
async fn a_call_waits_for_approval_and_runs_once_it_has_it() {
    let (origin, seen) = mcp_server::start().await;
    let mut tools = server(&origin);
    tools[0]["require_approval"] = json!({"never": {"tool_names": ["fail"]}});
    let config = hosted(&origin);
    let mut session = begin(&config, request(tools.clone(), json!({}))).await.expect("a session");
    let event = calls(&[("voice__shout", json!({"text": "hi"}))]);
    assert!(matches!(session.observe(event), Observed::Event(AnswerEvent::Finished { .. })), "it waits");
    let asked = json!({"type": "mcp_approval_request", "id": "mcpr_1", "server_label": "voice", "name": "shout",
                       "arguments": "{\"text\":\"hi\"}"});
    let approved = |approve: bool| {
        json!({"input": [{"role": "user", "content": "Say hi."}, asked,
               {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": approve}]})
    };
    let toolbox = Toolbox::open(&config).expect("a toolbox");
    let denied = request(tools.clone(), approved(false));
    let (session, pending) =
        Session::begin(&toolbox, denied, &TurnContext::default()).await.expect("a session");
    assert!(pending.is_empty());
    assert_eq!(prompt(&session).0[2].1, "The user denied this call.");
    let request = request(tools, approved(true));
    let (mut session, pending) =
        Session::begin(&toolbox, request, &TurnContext::default()).await.expect("a session");
    for call in pending {
        session.settle_approved(call.run().await);
    }
    assert_eq!(prompt(&session).0[2].1, "HI");
    assert_eq!(seen.calls.lock().expect("no panic").len(), 1);
}

#[tokio::test]
async fn calls_and_turns_have_a_bound() {
    let (origin, seen) = mcp_server::start().await;
    let asked = request(server(&origin), json!({"max_tool_calls": 2}));
    let mut session = begin(&hosted(&origin), asked).await.expect("a session");
    let three = ["a", "b", "c"].map(|text| ("voice__shout", json!({"text": text})));
    let results = run(&mut session, calls(&three)).await;
    assert_eq!(results[..2], [Ok("A".to_owned()), Ok("B".to_owned())]);
    assert!(matches!(&results[2], Err(CallFailure::Unanswered { status: 429, .. })), "{results:?}");
    assert_eq!(seen.calls.lock().expect("no panic").len(), 2);
    assert!(matches!(session.end_turn(), TurnOutcome::Next));
    let (request, context) = session.next_request();
    let (request, _) = request.into_request(&context).expect("a request");
    let Input::Chat(chat) = request.spec.input else { panic!("a chat") };
    assert!(!chat.calls_tools, "the model may not call any more");
    let config = ToolsConfig { max_turns: 1, ..hosted(&origin) };
    let mut session = begin(&config, self::request(server(&origin), json!({}))).await.expect("a session");
    run(&mut session, calls(&three[..1])).await;
    assert!(matches!(session.end_turn(), TurnOutcome::End(AnswerEvent::Finished { .. })));
}

#[tokio::test]
async fn calls_of_the_client_end_the_response_behind_those_that_run_here() {
    let (origin, _) = mcp_server::start().await;
    let mut tools = server(&origin);
    tools.as_array_mut().expect("tools").push(json!({"type": "function", "name": "open", "parameters": {}}));
    let mut session = begin(&hosted(&origin), request(tools, json!({}))).await.expect("a session");
    let event = calls(&[("open", json!({})), ("voice__shout", json!({"text": "x"}))]);
    assert_eq!(run(&mut session, event).await, [Ok("X".to_owned())]);
    assert!(matches!(session.end_turn(), TurnOutcome::End(AnswerEvent::Finished { .. })));
}

#[tokio::test]
async fn a_dropped_call_is_cancelled_at_the_server_and_long_results_are_cut() {
    let (origin, seen) = mcp_server::start().await;
    let mut session = begin(&hosted(&origin), request(server(&origin), json!({}))).await.expect("a session");
    let Observed::Calls(_, mut pending) = session.observe(calls(&[("voice__wait", json!({}))])) else {
        panic!("a call");
    };
    let running = tokio::spawn(pending.pop().map(PendingCall::run).expect("a call"));
    until(|| seen.n_waiting.load(Ordering::SeqCst) == 1).await;
    running.abort();
    until(|| seen.n_waiting.load(Ordering::SeqCst) == 0).await;
    let results = run(&mut session, calls(&[("voice__long", json!({}))])).await;
    let text = results[0].as_ref().expect("a text");
    assert!(text.len() < 66_000 && text.ends_with("[cut after 65536 bytes]"), "{} bytes", text.len());
}

#[tokio::test]
async fn a_question_of_a_server_is_declined() {
    let (origin, _) = mcp_server::start().await;
    let mut session = begin(&hosted(&origin), request(server(&origin), json!({}))).await.expect("a session");
    let results = run(&mut session, calls(&[("voice__ask", json!({}))])).await;
    assert_eq!(results, [Ok(r#"{"action":"decline"}"#.to_owned())]);
}

#[tokio::test]
async fn messages_of_servers_are_cut_too() {
    let (origin, _) = mcp_server::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let configured = throng_tools::ServerConfig {
        name: "voice".to_owned(),
        url: Some(format!("{origin}/mcp")),
        ..Default::default()
    };
    let pins = Some(folder.path().join("pins.json"));
    let config = ToolsConfig { pins, server: vec![configured], ..ToolsConfig::default() };
    let toolbox = Toolbox::open(&config).expect("a toolbox");
    let failure = toolbox.call("voice", &"x".repeat(200_000), "{}").await.expect_err("no such tool");
    let CallFailure::Protocol { message, .. } = failure else { panic!("{failure:?}") };
    assert!(
        message.len() < 66_000 && message.ends_with("[cut after 65536 bytes]"),
        "{} bytes",
        message.len()
    );
}

/// Waits until something holds.
async fn until(holds: impl Fn() -> bool) {
    for _ in 0..1_000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("it never came about");
}

#[tokio::test]
async fn a_list_that_the_conversation_has_is_not_asked_for_again() {
    let (origin, seen) = mcp_server::start().await;
    let config = hosted(&origin);
    let toolbox = Toolbox::open(&config).expect("a toolbox");
    let session = begin(&config, request(server(&origin), json!({}))).await.expect("a session");
    let (_, context) = session.next_request();
    let history = context.served.expect("tools").first;
    assert!(matches!(&history[..], [Item::McpListTools(list)] if list.tools.len() == 5), "{history:?}");
    seen.is_changed.store(true, Ordering::SeqCst);
    let context = TurnContext { history: history.into(), ..TurnContext::default() };
    let asked = request(server(&origin), json!({}));
    let (session, _) = Session::begin(&toolbox, asked, &context).await.expect("a session");
    let (_, context) = session.next_request();
    let served = context.served.expect("tools");
    assert!(served.first.is_empty(), "{:?}", served.first);
    assert_eq!(served.tools[0].description.as_deref(), Some("Says it loudly."), "as the client has seen it");
}

/// A conversation whose first request allowed only `shout`.
async fn narrowed(origin: &str) -> TurnContext {
    let mut tools = server(origin);
    tools[0]["allowed_tools"] = json!(["shout"]);
    let session = begin(&hosted(origin), request(tools, json!({}))).await.expect("a session");
    let history = session.next_request().1.served.expect("tools").first;
    assert!(matches!(&history[..], [Item::McpListTools(list)] if list.tools.len() == 1), "{history:?}");
    TurnContext { history: history.into(), ..TurnContext::default() }
}

#[tokio::test]
async fn allowed_tools_may_grow_within_a_conversation() {
    let (origin, _) = mcp_server::start().await;
    let toolbox = Toolbox::open(&hosted(&origin)).expect("a toolbox");
    let context = narrowed(&origin).await;
    let mut tools = server(&origin);
    tools[0]["allowed_tools"] = json!(["shout", "fail"]);
    let (session, _) =
        Session::begin(&toolbox, request(tools, json!({})), &context).await.expect("a session");
    let served = session.next_request().1.served.expect("tools");
    assert_eq!(served.tools.iter().map(|tool| tool.name.as_str()).collect::<Vec<_>>(), ["shout", "fail"]);
    assert_eq!(served.first.len(), 1, "a new list");
}

#[tokio::test]
async fn lists_of_the_client_are_checked_as_those_of_servers() {
    let (origin, _) = mcp_server::start().await;
    let list = json!({"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "voice",
                      "tools": [{"name": "a b", "input_schema": {}}]});
    let input = json!({"input": [{"role": "user", "content": "Hi"}, list]});
    let error = begin(&hosted(&origin), request(server(&origin), input)).await.expect_err("a bad name");
    assert_eq!((error.status().as_u16(), error.param()), (400, Some("input")));
    assert!(error.message().contains("a tool has the name"), "{error}");
}

#[tokio::test]
async fn a_kept_call_is_approved_by_reference() {
    let (origin, seen) = mcp_server::start().await;
    let toolbox = Toolbox::open(&hosted(&origin)).expect("a toolbox");
    let asked = json!({"type": "mcp_approval_request", "id": "mcpr_1", "server_label": "voice", "name": "shout",
                       "arguments": "{\"text\":\"hi\"}"});
    let decision = json!({"type": "mcp_approval_response", "id": "mcpar_1", "approval_request_id": "mcpr_1",
                          "approve": true, "reason": null});
    let referenced: Vec<Item> = serde_json::from_value(json!([asked, decision])).expect("items");
    let context = TurnContext { referenced, ..TurnContext::default() };
    let input = json!({"input": [{"role": "user", "content": "Say hi."},
                                 {"type": "item_reference", "id": "mcpr_1"}, {"type": "item_reference", "id": "mcpar_1"}]});
    let asked = request(server(&origin), input);
    let (mut session, pending) = Session::begin(&toolbox, asked, &context).await.expect("a session");
    assert_eq!(pending.len(), 1);
    for call in pending {
        session.settle_approved(call.run().await);
    }
    assert_eq!(seen.calls.lock().expect("no panic").len(), 1);
}
