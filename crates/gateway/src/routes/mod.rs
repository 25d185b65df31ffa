//! The table of routes: path, methods, who may ask. Everything that holds for all routes is made from it. Refuses
//! to know what the routes do.

mod generate;
mod health;
mod json_body;
mod models;
mod operations;
mod page;
mod tokenize;

use std::sync::Arc;

use axum::Extension;
use axum::extract::{MatchedPath, OriginalUri, Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use http::Method;

use crate::app::App;
use crate::openai::ApiError;
use crate::server::RequestContext;

/// Who may use a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Anyone.
    Open,
    /// Holders of a key, when there are keys.
    Key,
}

/// One route.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Route {
    /// Its path, as axum writes patterns.
    pub path: &'static str,
    /// The methods it answers to, as the `Allow` header says them.
    pub allow: &'static str,
    /// Who may use it.
    pub access: Access,
    handler: fn() -> MethodRouter<Arc<App>>,
}

const GET: &str = "GET, HEAD";

const fn open(path: &'static str, handler: fn() -> MethodRouter<Arc<App>>) -> Route {
    Route { path, allow: GET, access: Access::Open, handler }
}

const fn keyed(path: &'static str, allow: &'static str, handler: fn() -> MethodRouter<Arc<App>>) -> Route {
    Route { path, allow, access: Access::Key, handler }
}

/// All routes.
pub(crate) const ROUTES: &[Route] = &[
    open("/", || get(page::index)),
    open("/ui/{file}", || get(page::file)),
    open("/health", || get(health::ready)),
    open("/health/live", || get(health::live)),
    open("/health/ready", || get(health::ready)),
    open("/ping", || get(health::ready)),
    open("/version", || get(operations::version)),
    keyed("/load", GET, || get(operations::load)),
    keyed("/openapi.json", GET, || get(operations::openapi)),
    keyed("/metrics", GET, || get(operations::metrics)),
    keyed("/v1/chat/completions", "POST", || post(generate::chat)),
    keyed("/v1/completions", "POST", || post(generate::completions)),
    keyed("/v1/models", GET, || get(models::list)),
    keyed("/v1/models/{*id}", GET, || get(models::card)),
    keyed("/tokenize", "POST", || post(tokenize::tokenize)),
    keyed("/detokenize", "POST", || post(tokenize::detokenize)),
];

/// The routes as a service. A request brings its [`RequestContext`] as an extension; its response brings its
/// [`MatchedPath`].
pub(crate) fn router(app: Arc<App>) -> axum::Router {
    let mut router = axum::Router::new();
    for route in ROUTES {
        router = router.route(route.path, (route.handler)());
    }
    router
        .method_not_allowed_fallback(method_not_allowed)
        .route_layer(middleware::from_fn_with_state(app.clone(), authorize))
        .fallback(unknown_url)
        .with_state(app)
}

fn route_of(path: &MatchedPath) -> Option<&'static Route> {
    ROUTES.iter().find(|route| route.path == path.as_str())
}

async fn authorize(
    State(app): State<Arc<App>>,
    Extension(context): Extension<Arc<RequestContext>>,
    path: MatchedPath,
    request: Request,
    next: Next,
) -> Response {
    let is_open = route_of(&path).is_some_and(|route| route.access == Access::Open);
    let mut response = match app.keys.authenticate(request.headers()) {
        Err(error) if !is_open => error.into_response(),
        tenant => {
            if let Ok(tenant) = tenant {
                context.set_tenant(tenant);
            }
            next.run(request).await
        }
    };
    response.extensions_mut().insert(path);
    response
}

async fn method_not_allowed(path: MatchedPath) -> ApiError {
    ApiError::method_not_allowed(route_of(&path).map_or(GET, |route| route.allow))
}

async fn unknown_url(method: Method, OriginalUri(uri): OriginalUri) -> ApiError {
    ApiError::unknown_url(method.as_str(), uri.path())
}
