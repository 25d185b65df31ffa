//! The table of routes: path, methods, who may ask. Everything that holds for all routes is made from it. Does
//! not know what the routes do.

mod adapters;
mod explain;
mod fleet;
mod generate;
mod health;
mod json_body;
mod models;
mod operations;
mod page;
mod path_text;
mod tokenize;
mod usage;

use std::sync::Arc;

use axum::Extension;
use axum::extract::{MatchedPath, OriginalUri, Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use http::Method;

use crate::app::App;
use crate::connection::RequestContext;
use crate::openai::ApiError;

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

impl Route {
    /// Whether it has no answer while no model is loaded.
    fn needs_models(&self) -> bool {
        self.access == Access::Key
            && !matches!(self.path, "/openapi.json" | "/metrics" | "/fleet")
            && !self.path.starts_with("/v1/organization/")
    }
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
    open("/dashboard", || get(page::dashboard)),
    open("/ui/{file}", || get(page::file)),
    open("/health", || get(health::ready)),
    open("/health/live", || get(health::live)),
    open("/health/ready", || get(health::ready)),
    open("/ping", || get(health::ready)),
    open("/version", || get(operations::version)),
    keyed("/load", GET, || get(operations::load)),
    keyed("/openapi.json", GET, || get(operations::openapi)),
    keyed("/metrics", GET, || get(operations::metrics)),
    keyed("/explain", GET, || get(explain::latest)),
    keyed("/explain/{*id}", GET, || get(explain::request)),
    keyed("/fleet", GET, || get(fleet::workers)),
    keyed("/v1/chat/completions", "POST", || post(generate::chat)),
    keyed("/v1/completions", "POST", || post(generate::completions)),
    keyed("/v1/models", GET, || get(models::list)),
    keyed("/v1/models/{*id}", GET, || get(models::card)),
    keyed("/v1/organization/usage/completions", GET, || get(usage::completions)),
    keyed("/v1/organization/costs", GET, || get(usage::costs)),
    keyed("/v1/load_lora_adapter", "POST", || post(adapters::load)),
    keyed("/v1/unload_lora_adapter", "POST", || post(adapters::unload)),
    keyed("/tokenize", "POST", || post(tokenize::tokenize)),
    keyed("/tokenizer_info", GET, || get(tokenize::info)),
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
            match &app.loading {
                Some(progress) if route_of(&path).is_some_and(Route::needs_models) => {
                    progress.refusal().into_response()
                }
                _ => next.run(request).await,
            }
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

#[cfg(test)]
mod tests {
    use http::{HeaderMap, StatusCode, Version};
    use tower::ServiceExt;

    use super::*;
    use crate::app::Shared;
    use crate::config::{GatewayConfig, Secret};

    /// The routes that the documentation lists as open; any other must ask for a key.
    const OPEN: &[&str] =
        &["/", "/dashboard", "/ui/{file}", "/health", "/health/live", "/health/ready", "/ping", "/version"];

    async fn status(app: &Arc<App>, route: &Route, key: Option<&str>) -> StatusCode {
        let method = route.allow.split(',').next().expect("a method");
        let path = route.path.replace("{file}", "app.js").replace("{*id}", "some/model");
        let mut request = http::Request::builder().method(method).uri(path);
        if let Some(key) = key {
            request = request.header("authorization", key);
        }
        let context = RequestContext::new(&HeaderMap::new(), Version::HTTP_11, None, Default::default());
        let request = request.extension(Arc::new(context)).body(axum::body::Body::empty());
        let answer = router(app.clone()).oneshot(request.expect("a valid request")).await;
        answer.expect("the router always answers").status()
    }

    #[tokio::test]
    async fn every_route_of_the_table_asks_for_a_key_but_the_listed_ones() {
        let mut config = GatewayConfig::default();
        config.access.api_keys = vec![Secret::new("right"), Secret::new("also-right")];
        let shared = Shared::new(&config, Default::default());
        let app = Arc::new(App::new(config, Vec::new(), shared, None));
        for route in ROUTES {
            let is_open = OPEN.contains(&route.path);
            assert_eq!(route.access == Access::Open, is_open, "{}", route.path);
            for key in [None, Some("Bearer wrong"), Some("right"), Some("Bearer "), Some("Basic right")] {
                let refused = status(&app, route, key).await == StatusCode::UNAUTHORIZED;
                assert_eq!(refused, !is_open, "{} with {key:?}", route.path);
            }
            for key in ["Bearer right", "Bearer also-right"] {
                assert_ne!(status(&app, route, Some(key)).await, StatusCode::UNAUTHORIZED, "{}", route.path);
            }
        }
    }

    #[test]
    fn the_document_lists_every_route() {
        let listed: Vec<&str> = crate::openai::openapi::paths().collect();
        for route in ROUTES.iter().filter(|route| route.path != "/ui/{file}") {
            let path = route.path.replace("{*id}", "{id}");
            assert!(
                listed.iter().any(|known| known.replace("{model}", "{id}") == path),
                "{path}: {listed:?}"
            );
        }
    }
}
