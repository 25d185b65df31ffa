//! `throng serve`: answers requests over HTTP until it is told to end.

use anyhow::{Context, Result};
use throng_gateway::openai::GenerationDefaults;
use throng_gateway::{Gateway, ServedModel};
use tokio::net::TcpListener;

use crate::args::{GenerationConfigSource, ServeArgs};
use crate::config::Settings;
use crate::running::{self, RunningModel};

/// Runs the command.
///
/// # Errors
/// When the settings make no sense, the model cannot be loaded or the address is taken.
pub async fn run(arguments: &ServeArgs) -> Result<()> {
    let settings = Settings::of(arguments)?;
    let server = &settings.gateway.server;
    // Taken before the model is loaded: a wrong port is told at once.
    let listener = TcpListener::bind((server.host.as_str(), server.port))
        .await
        .with_context(|| format!("cannot listen on {}:{}", server.host, server.port))?;
    let running = running::start(&settings.model, &settings.engine)?;
    tracing::info!("{}: {} threads", running.names[0], running::n_threads(&settings.model));
    if let Some(line) = running.describe_quantizing() {
        tracing::info!("{line}");
    }
    tracing::info!("{}", running.describe_kv_cache());
    if let Some(notice) = running.notice {
        println!("{notice}");
    }
    let address = listener.local_addr()?;
    let engine = running.engine.clone();
    let served = served_model(running, settings.model.generation_config);
    let gateway = Gateway::new(settings.gateway, vec![served])?;
    println!("Serving on http://{address} (chat in a browser, or use it as an OpenAI API at /v1)");
    gateway.serve(listener, told_to_end()).await?;
    engine.shutdown();
    Ok(())
}

fn served_model(running: RunningModel, source: GenerationConfigSource) -> ServedModel {
    let recommended = match source {
        GenerationConfigSource::Auto => running.model.generation_defaults,
        GenerationConfigSource::Vllm => Default::default(),
    };
    let capacity = running.engine.capacity();
    ServedModel {
        root: running.names.last().cloned().unwrap_or_default(),
        eos_token_ids: running.eos_token_ids(),
        names: running.names,
        engine: running.engine,
        tokenizer: running.tokenizer,
        chat_template: running.chat_template,
        generation_defaults: GenerationDefaults {
            temperature: recommended.temperature,
            top_p: recommended.top_p,
            top_k: recommended.top_k,
            min_p: recommended.min_p,
            repetition_penalty: recommended.repetition_penalty,
            max_tokens: recommended.max_new_tokens,
        },
        max_model_len: capacity.max_sequence_tokens,
        vocabulary_size: capacity.vocabulary_size,
        notice: running.notice.map(str::to_owned),
    }
}

/// Completes on Ctrl-C or, where there is such a thing, SIGTERM.
async fn told_to_end() {
    let interrupt = async {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    #[cfg(unix)]
    let terminate = async {
        match tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
            Ok(mut signal) => {
                signal.recv().await;
            }
            Err(_) => std::future::pending().await,
        }
    };
    #[cfg(not(unix))]
    let terminate = std::future::pending::<()>();
    tokio::select! {
        () = interrupt => {}
        () = terminate => {}
    }
    tracing::info!("ending: running streams may finish");
}
