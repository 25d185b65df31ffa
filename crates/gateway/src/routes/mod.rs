//! The table of routes with path, methods and access, from which checks and services are built. Does not know
//! the handlers' work.

mod adapters;
mod admin;
mod batch_endpoint;
mod by_engine;
mod client_paths;
mod explain;
mod fleet;
mod generate;
mod health;
mod json_body;
mod kept;
mod models;
mod moderations;
mod ollama;
mod operations;
mod page;
mod path_text;
mod pooling;
mod responses;
mod tokenize;
mod usage;

use std::sync::Arc;

use axum::Extension;
use axum::extract::{MatchedPath, OriginalUri, Request, State};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{MethodRouter, delete, get, post};
use http::Method;

use self::admin::on_demand::{Order, obey};
pub(crate) use self::batch_endpoint::BatchEndpoint;
pub(crate) use self::client_paths::tidied;
use self::kept::{batches, files, message_batches};
use self::responses::conversations;
use crate::app::App;
use crate::caller::Caller;
use crate::rejection::reject;
use throng_api::anthropic::Messages;
use throng_api::llama_cpp::InfillEndpoint;
use throng_api::ollama::Chat;
use throng_api::openai::ChatCompletions;
use throng_api::{ApiError, Dialect};
use throng_auth::Tenant;

/// Permission that a route needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// No key is needed.
    Open,
    /// Clients: holders of a key, if there are keys. Not the operator, whose key no client should have.
    Key,
    /// Clients for their own data, and the operator for all.
    Shared,
    /// The operator; on a server without keys, anyone who can connect.
    Operator,
    /// The operator, on the operator's listener only.
    Admin,
}

/// Audience of the listener that received a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Audience {
    /// Clients of the gateway.
    Clients,
    /// Clients of Ollama's port.
    OllamaClients,
    /// The operator, with the operator's key.
    Operator,
}

/// A route of the gateway.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Route {
    /// Path in axum's notation of patterns.
    pub path: &'static str,
    /// Methods in the form of the `Allow` header.
    pub allow: &'static str,
    /// Access to the route.
    pub access: Access,
    /// The API whose form its errors have.
    dialect: &'static dyn Dialect,
    handler: fn() -> MethodRouter<Arc<App>>,
}

impl Route {
    /// Sets the API whose form the route's errors have.
    const fn in_form_of(self, dialect: &'static dyn Dialect) -> Self {
        Self { dialect, ..self }
    }

    /// Whether the route cannot answer without a loaded model.
    fn needs_models(&self) -> bool {
        matches!(self.access, Access::Key | Access::Operator)
            && !matches!(self.path, "/metrics" | "/fleet" | "/plan" | "/v1/moderations")
    }

    /// Whether a listener for this audience has the route.
    fn is_for(&self, audience: Audience) -> bool {
        match audience {
            Audience::Clients | Audience::OllamaClients => self.access != Access::Admin,
            Audience::Operator => self.access != Access::Key && self.path != "/",
        }
    }
}

const GET: &str = "GET, HEAD";

const fn open(path: &'static str, handler: fn() -> MethodRouter<Arc<App>>) -> Route {
    of(Access::Open, path, GET, handler)
}

const fn keyed(path: &'static str, allow: &'static str, handler: fn() -> MethodRouter<Arc<App>>) -> Route {
    of(Access::Key, path, allow, handler)
}

const fn of(
    access: Access,
    path: &'static str,
    allow: &'static str,
    handler: fn() -> MethodRouter<Arc<App>>,
) -> Route {
    Route { path, allow, access, dialect: &ChatCompletions, handler }
}

use Access::{Admin, Operator, Shared};

/// All routes of the server.
pub(crate) const ROUTES: &[Route] = &[
    open("/", || get(page::index)),
    open("/dashboard", || get(page::dashboard)),
    open("/ui/{file}", || get(page::file)),
    open("/health", || get(health::ready)),
    open("/health/live", || get(health::live)),
    open("/health/ready", || get(health::ready)),
    open("/ping", || get(health::ready)),
    open("/version", || get(operations::version)),
    open("/api/version", || get(ollama::version)),
    of(Operator, "/load", GET, || get(operations::load)),
    of(Shared, "/openapi.json", GET, || get(operations::openapi)),
    of(Operator, "/metrics", GET, || get(operations::metrics)),
    of(Shared, "/explain", GET, || get(explain::latest)),
    of(Shared, "/explain/{*id}", GET, || get(explain::request)),
    of(Operator, "/fleet", GET, || get(fleet::workers)),
    of(Operator, "/plan", GET, || get(page::plan)),
    keyed("/v1/chat/completions", "POST", || post(generate::chat)),
    keyed("/v1/completions", "POST", || post(generate::completions)),
    keyed("/v1/responses", "POST", || post(generate::responses).get(responses::connect)),
    keyed("/v1/responses/compact", "POST", || post(generate::compact)),
    keyed("/v1/responses/{id}", "GET, HEAD, DELETE", || get(responses::get).delete(responses::delete)),
    keyed("/v1/responses/{id}/cancel", "POST", || post(responses::cancel)),
    keyed("/v1/responses/{id}/input_items", GET, || get(responses::input_items)),
    keyed("/v1/conversations", "POST", || post(conversations::create)),
    keyed("/v1/conversations/{id}", "GET, HEAD, POST, DELETE", || {
        get(conversations::get).post(conversations::update).delete(conversations::delete)
    }),
    keyed("/v1/conversations/{id}/items", "GET, HEAD, POST", || {
        get(conversations::items).post(conversations::add)
    }),
    keyed("/v1/conversations/{id}/items/{item_id}", "GET, HEAD, DELETE", || {
        get(conversations::item).delete(conversations::delete_item)
    }),
    keyed("/v1/responses/input_tokens", "POST", || post(tokenize::input_tokens)),
    keyed("/infill", "POST", || post(generate::infill)).in_form_of(&InfillEndpoint),
    keyed("/v1/messages", "POST", || post(generate::messages)).in_form_of(&Messages),
    keyed("/v1/messages/batches", "GET, HEAD, POST", || {
        get(message_batches::list).post(message_batches::create)
    })
    .in_form_of(&Messages),
    keyed("/v1/messages/batches/{id}", "GET, HEAD, DELETE", || {
        get(message_batches::get).delete(message_batches::delete)
    })
    .in_form_of(&Messages),
    keyed("/v1/messages/batches/{id}/cancel", "POST", || post(message_batches::cancel)).in_form_of(&Messages),
    keyed("/v1/messages/batches/{id}/results", GET, || get(message_batches::results)).in_form_of(&Messages),
    keyed("/v1/files", "GET, HEAD, POST", || get(files::list).post(files::upload)),
    keyed("/v1/files/{id}", "GET, HEAD, DELETE", || get(files::get).delete(files::delete)),
    keyed("/v1/files/{id}/content", GET, || get(files::content)),
    keyed("/v1/batches", "GET, HEAD, POST", || get(batches::list).post(batches::create)),
    keyed("/v1/batches/{id}", GET, || get(batches::get)),
    keyed("/v1/batches/{id}/cancel", "POST", || post(batches::cancel)),
    keyed("/v1/messages/count_tokens", "POST", || post(tokenize::count)).in_form_of(&Messages),
    keyed("/api/chat", "POST", || post(generate::ollama_chat)).in_form_of(&Chat),
    keyed("/api/generate", "POST", || post(generate::ollama_generate)).in_form_of(&Chat),
    keyed("/api/tags", GET, || get(ollama::tags)).in_form_of(&Chat),
    keyed("/api/ps", GET, || get(ollama::running)).in_form_of(&Chat),
    keyed("/api/show", "POST", || post(ollama::show)).in_form_of(&Chat),
    keyed("/api/embed", "POST", || post(pooling::ollama_embed)).in_form_of(&Chat),
    keyed("/api/embeddings", "POST", || post(pooling::ollama_embedding)).in_form_of(&Chat),
    of(Operator, "/api/pull", "POST", || post(ollama::pull)).in_form_of(&Chat),
    of(Operator, "/api/delete", "DELETE, POST", || delete(ollama::delete).post(ollama::delete))
        .in_form_of(&Chat),
    of(Operator, "/api/copy", "POST", || post(ollama::copy)).in_form_of(&Chat),
    of(Operator, "/api/create", "POST", || post(ollama::create)).in_form_of(&Chat),
    of(Operator, "/api/push", "POST", || post(ollama::create)).in_form_of(&Chat),
    keyed("/v1/moderations", "POST", || post(moderations::moderations)),
    keyed("/v1/embeddings", "POST", || post(pooling::embeddings)),
    keyed("/v1/rerank", "POST", || post(pooling::rerank)),
    keyed("/rerank", "POST", || post(pooling::rerank)),
    keyed("/score", "POST", || post(pooling::score)),
    keyed("/v1/score", "POST", || post(pooling::score)),
    keyed("/v1/classify", "POST", || post(pooling::classify)),
    keyed("/classify", "POST", || post(pooling::classify)),
    keyed("/v1/models", GET, || get(models::list)),
    of(Operator, "/v1/models/load", "POST", || post(|app, body| obey(Order::Load, app, body))),
    of(Operator, "/v1/models/unload", "POST", || post(|app, body| obey(Order::Unload, app, body))),
    of(Operator, "/v1/models/sleep", "POST", || post(|app, body| obey(Order::Sleep, app, body))),
    of(Operator, "/v1/models/wake", "POST", || post(|app, body| obey(Order::Wake, app, body))),
    keyed("/v1/models/{*id}", GET, || get(models::card)),
    of(Shared, "/v1/organization/usage/completions", GET, || get(usage::completions)),
    of(Shared, "/v1/organization/costs", GET, || get(usage::costs)),
    of(Operator, "/v1/load_lora_adapter", "POST", || post(adapters::load)),
    of(Operator, "/v1/unload_lora_adapter", "POST", || post(adapters::unload)),
    keyed("/tokenize", "POST", || post(tokenize::tokenize)),
    keyed("/tokenizer_info", GET, || get(tokenize::info)),
    keyed("/detokenize", "POST", || post(tokenize::detokenize)),
    of(Admin, "/admin/keys", "GET, HEAD, POST", || get(admin::list_keys).post(admin::create_key)),
    of(Admin, "/admin/keys/{id}", "POST", || post(admin::change_key)),
    of(Admin, "/admin/keys/{id}/revoke", "POST", || post(admin::revoke_key)),
    of(Admin, "/admin/organisations", GET, || get(admin::list_organisations)),
    of(Admin, "/admin/audit", GET, || get(admin::audit::list)),
    of(Admin, "/admin/limits", "POST", || post(admin::limit)),
    of(Admin, "/admin/models", GET, || get(admin::on_demand::list)),
    of(Admin, "/admin/rollouts", "GET, HEAD, POST", || {
        get(admin::rollouts::list).post(admin::rollouts::begin)
    }),
    of(Admin, "/admin/rollouts/{alias}/rollback", "POST", || post(admin::rollouts::roll_back)),
    of(Admin, "/admin/drain", "POST", || post(admin::drain)),
];

/// Service for the routes of a listener. A request has its [`Caller`] as an extension; its response has its
/// [`MatchedPath`].
pub(crate) fn router(app: Arc<App>, audience: Audience) -> axum::Router {
    let mut router = axum::Router::new();
    for route in ROUTES.iter().filter(|route| route.is_for(audience)) {
        let is_greeting = audience == Audience::OllamaClients && route.path == "/";
        let handler = if is_greeting { get(ollama::greeting) } else { (route.handler)() };
        router = router.route(route.path, handler);
    }
    router
        .method_not_allowed_fallback(method_not_allowed)
        .route_layer(middleware::from_fn_with_state((app.clone(), audience), authorize))
        .fallback(unknown_url)
        .with_state(app)
}

/// The API whose form the errors of a route have; OpenAI's for an unknown one.
pub(crate) fn dialect_of(path: Option<&MatchedPath>) -> &'static dyn Dialect {
    path.and_then(route_of).map_or(&ChatCompletions, |route| route.dialect)
}

fn route_of(path: &MatchedPath) -> Option<&'static Route> {
    ROUTES.iter().find(|route| route.path == path.as_str())
}

async fn authorize(
    State((app, audience)): State<(Arc<App>, Audience)>,
    Extension(caller): Extension<Arc<Caller>>,
    path: MatchedPath,
    request: Request,
    next: Next,
) -> Response {
    let access = route_of(&path).map_or(Access::Admin, |route| route.access);
    let found = app.policy.keys.authenticate(request.headers());
    let mut response = match found.and_then(|tenant| permit(&app, audience, access, tenant)) {
        Err(error) if access != Access::Open => reject(error),
        tenant => {
            if let Ok(tenant) = tenant {
                caller.set_tenant(tenant);
            }
            match &app.models.loading {
                Some(progress) if route_of(&path).is_some_and(Route::needs_models) => {
                    reject(progress.refusal())
                }
                _ => next.run(request).await,
            }
        }
    };
    response.extensions_mut().insert(path);
    response
}

/// The tenant, if this listener permits it such a route.
fn permit(app: &App, audience: Audience, access: Access, tenant: Tenant) -> Result<Tenant, ApiError> {
    let needs_no_key = app.policy.keys.is_open();
    let is_of_clients = audience != Audience::Operator;
    match access {
        Access::Open => Ok(tenant),
        Access::Shared if is_of_clients => Ok(tenant),
        Access::Key if is_of_clients && !tenant.is_operator => Ok(tenant),
        Access::Key if is_of_clients => Err(ApiError::not_for_the_operator()),
        _ if is_of_clients && needs_no_key && !app.policy.keys.knows_operator() => Ok(tenant),
        _ if tenant.is_operator => Ok(tenant),
        _ if needs_no_key => Err(ApiError::missing_api_key()),
        _ if is_of_clients => Err(ApiError::only_for_the_operator()),
        _ => Err(ApiError::invalid_api_key()),
    }
}

async fn method_not_allowed(path: MatchedPath) -> Response {
    reject(ApiError::method_not_allowed(route_of(&path).map_or(GET, |route| route.allow)))
}

async fn unknown_url(method: Method, OriginalUri(uri): OriginalUri) -> Response {
    reject(ApiError::unknown_url(method.as_str(), uri.path()))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use throng_api::openapi::Method;

    use super::*;

    /// Routes that the documentation lists as open. Access to the others is tested over sockets, in
    /// `tests/route_access.rs`.
    const OPEN: &[&str] = &[
        "/",
        "/dashboard",
        "/ui/{file}",
        "/health",
        "/health/live",
        "/health/ready",
        "/ping",
        "/version",
        "/api/version",
    ];

    #[test]
    fn no_other_routes_are_open_than_those_that_are_listed() {
        let open = ROUTES.iter().filter(|route| route.access == Access::Open).map(|route| route.path);
        assert_eq!(open.collect::<Vec<_>>(), OPEN);
    }

    #[test]
    fn the_document_lists_every_route() {
        let listed: HashSet<(String, Method)> = throng_api::openapi::operations()
            .map(|(path, method)| (path.replace("{model}", "{id}"), method))
            .collect();
        for route in ROUTES.iter().filter(|route| route.path != "/ui/{file}") {
            let path = route.path.replace("{*id}", "{id}");
            for method in route.allow.split(", ").filter(|method| *method != "HEAD") {
                let method = match method {
                    "GET" => Method::Get,
                    "POST" => Method::Post,
                    "DELETE" => Method::Delete,
                    other => panic!("{other} of {path}"),
                };
                assert!(listed.contains(&(path.clone(), method)), "{method:?} {path}");
            }
        }
    }
}
