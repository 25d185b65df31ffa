//! The answers of `GET /v1/models` and `GET /v1/models/{id}`, in vLLM's form. Does not know what a model is.

use serde::Serialize;

/// A list of models.
#[derive(Debug, Serialize)]
pub struct ModelList<'a> {
    object: &'static str,
    data: Vec<ModelCard<'a>>,
}

/// A model under one of its names.
#[derive(Debug, Clone, Serialize)]
pub struct ModelCard<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    root: &'a str,
    parent: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_model_len: Option<u32>,
    permission: [ModelPermission; 1],
    #[serde(skip_serializing_if = "Option::is_none")]
    notice: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    input_modalities: Option<&'static [&'static str]>,
}

#[derive(Debug, Clone, Serialize)]
struct ModelPermission {
    id: String,
    object: &'static str,
    created: u64,
    allow_create_engine: bool,
    allow_sampling: bool,
    allow_logprobs: bool,
    allow_search_indices: bool,
    allow_view: bool,
    allow_fine_tuning: bool,
    organization: &'static str,
    group: Option<&'static str>,
    is_blocking: bool,
}

impl<'a> ModelList<'a> {
    /// Creates a list of models.
    pub fn new(data: Vec<ModelCard<'a>>) -> Self {
        Self { object: "list", data }
    }
}

impl<'a> ModelCard<'a> {
    /// Name of the model.
    pub fn id(&self) -> &'a str {
        self.id
    }

    /// Creates the card of the name `id`. `created`: start of the server in seconds since 1970; `root`:
    /// path or hub id of the loaded model; `parent`: base model of an adapter; `max_model_len` in tokens,
    /// if known.
    pub fn new(
        id: &'a str,
        root: &'a str,
        parent: Option<&'a str>,
        created: u64,
        max_model_len: Option<u32>,
    ) -> Self {
        let permission = ModelPermission {
            id: format!("modelperm-{id}"),
            object: "model_permission",
            created,
            allow_create_engine: false,
            allow_sampling: true,
            allow_logprobs: true,
            allow_search_indices: false,
            allow_view: true,
            allow_fine_tuning: false,
            organization: "*",
            group: None,
            is_blocking: false,
        };
        Self {
            id,
            object: "model",
            created,
            owned_by: "throng",
            root,
            parent,
            max_model_len,
            permission: [permission],
            notice: None,
            state: None,
            input_modalities: None,
        }
    }

    /// Adds the state of a model that is loaded on demand: whether it is in memory.
    pub fn with_state(mut self, state: Option<&'static str>) -> Self {
        self.state = state;
        self
    }

    /// Adds the content types that prompts may have beside text.
    pub fn with_images(mut self, takes_images: bool) -> Self {
        self.input_modalities = takes_images.then_some(&["text", "image"]);
        self
    }

    /// Adds a notice for users about the model.
    pub fn with_notice(mut self, notice: Option<&'a str>) -> Self {
        self.notice = notice;
        self
    }
}
