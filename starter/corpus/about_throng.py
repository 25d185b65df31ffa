"""What Throng is and how to use it: every question in many wordings, one answer."""

import random

from corpus.phrases import expand, question
from corpus.task import Task, ask, contains

TOPIC = "throng"

HOW = "[how do I|how can I|how to|what must I do to|tell me how to|can you tell me how to|what is the command to]"
WHICH = "[what is|which is|tell me|what's]"

INTENTS: list[tuple[list[str], str, list[str]]] = [
    (["what is throng?", "[tell me|say something] about throng.", "explain throng[ to me|].", "what does throng do?", "[what|which] kind of program is throng?",
      "describe throng[ in one sentence|]."],
     "Throng is a program that serves large language models to many users at once, from your own hardware, through the OpenAI API.", ["serves", "models"]),
    (["why [should I use|would I use|use] throng?", "what is [good|special|new] about throng?", "[what are|tell me] the advantages of throng?"],
     "Throng is one binary, it is fast on CPUs, and many users share one pass over the weights, so a crowd costs little more than one user.", ["one binary", "users"]),
    ([f"{HOW} [load|use|serve|run|open|start] [my own|my|another|a different|a real|a bigger|a better] model[ with throng| in throng||]?",
      "can I [load|use|run] [my own|another|a real] model[ with throng|]?", "[where|how] do I [give|tell] throng my model?"],
     "Run `throng serve MODEL`, where MODEL is a folder, a .gguf file or a Hugging Face name such as org/name.", ["throng serve"]),
    ([f"{HOW} [start|run|launch] [throng|the server]?", "[what|which] command starts [throng|the server]?"],
     "Run `throng serve`. Without a model it serves me, the starter model, on http://127.0.0.1:8000.", ["throng serve"]),
    ([f"{HOW} [load|use|serve|run|open] a [gguf|GGUF] [file|model]?", "can throng [load|read|open|serve] [gguf|GGUF] files?", "does throng support [gguf|GGUF]?"],
     "Run `throng serve path/to/model.gguf`. Split files work too.", ["throng serve", ".gguf"]),
    ([f"{HOW} [load|use|serve|run|open|download] a model from [Hugging Face|the hub|huggingface]?", "can throng download models?", "does throng work with Hugging Face?"],
     "Run `throng serve org/name`, or `throng serve org/name:file.gguf` for one file of a repository.", ["org/name"]),
    ([f"{HOW} [load|use|serve|run|open] [safetensors|a safetensors folder|a folder with safetensors]?", "does throng support safetensors?"],
     "Run `throng serve FOLDER`, where the folder holds config.json, the safetensors files and tokenizer.json.", ["throng serve", "config.json"]),
    (["[which|what] [models|architectures|model families] [does throng support|can throng run|can I use|work with throng|are supported]?",
      "does throng support [llama|qwen|gemma|mistral|phi] models?"],
     "Throng runs llama, mistral, qwen2, qwen3, gemma2, gemma3, phi3, olmo2, smollm3, granite, mixtral and the qwen MoE models.", ["llama", "qwen3"]),
    (["[which|what] [model formats|file formats|formats|files] [does throng support|can throng read|can throng load|can I use]?"],
     "Throng loads safetensors folders and GGUF files.", ["safetensors", "GGUF"]),
    (["[which|what] [quantizations|quantized formats|kinds of quantization] [does throng support|can throng read|work]?", "does throng support quantized models?"],
     "Throng reads Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K to Q6_K, IQ4_NL and IQ4_XS.", ["Q8_0", "Q6_K"]),
    (["[which|what] port does [throng|the server] use?", f"{WHICH} the [default |]port[ of throng|]?", "on which port does throng [listen|run]?"],
     "Throng listens on port 8000 unless you give another one with --port.", ["8000"]),
    ([f"{HOW} [change|set|choose] the port?", "can I use another port?", "[which|what] flag sets the port?"],
     "Use the flag --port, for example `throng serve --port 9000`.", ["--port"]),
    ([f"{HOW} [reach|open|use] throng from another [computer|machine]?", f"{HOW} [change|set|choose] the [host|address]?", "[which|what] flag sets the host?"],
     "Use the flag --host, for example `throng serve --host 0.0.0.0`.", ["--host"]),
    ([f"{HOW} [chat|talk with a model|chat with a model] in the terminal?", "is there a terminal chat?", "[which|what] command is for chat?"],
     "Run `throng chat`, or `throng chat MODEL` for another model.", ["throng chat"]),
    (["is there a [web page|website|web interface|page in the browser]?", f"{HOW} [chat in the browser|open the web page|use the web page]?",
      "where is the [web page|chat page]?"],
     "Open http://127.0.0.1:8000 in your browser while the server runs.", ["127.0.0.1:8000"]),
    ([f"{HOW} [inspect|look into|examine|see the size of] a model?", "[what|which] command shows what is in a model?", "what does throng inspect do?"],
     "Run `throng inspect MODEL`. It shows the architecture, the sizes, the quantization and what fits in memory.", ["throng inspect"]),
    ([f"{HOW} [measure the speed|benchmark throng|benchmark a model|run a benchmark|test the speed]?", "what does throng bench do?", "how fast is my model?"],
     "Run `throng bench MODEL`. It measures prefill and decode in tokens per second.", ["throng bench"]),
    ([f"{HOW} [generate text|complete a prompt|generate once] [without a server|from the command line|on the command line]?", "what does throng generate do?"],
     "Run `throng generate`. It answers one prompt on the command line, without a server.", ["throng generate"]),
    (["[which|what] commands [does throng have|are there|can I use]?", "[list|name|show me] the [throng commands|commands of throng]."],
     "The commands are serve, chat, generate, inspect and bench.", ["serve", "chat", "bench"]),
    (["[which|what] [endpoints|routes|URLs] [does throng have|are there|can I use|does the server have]?", "[list|name|show me] the endpoints[ of throng|]."],
     "The main ones are /v1/chat/completions, /v1/completions, /v1/models, /tokenize, /detokenize, /health and /metrics.", ["/v1/chat/completions", "/health"]),
    (["[which|what] [API|interface|protocol] does throng [use|have|speak]?", "is throng compatible with OpenAI?", "does throng [speak|support] the OpenAI API?",
      "can I use the OpenAI [library|client|SDK][ with throng|]?"],
     "Throng speaks the OpenAI API. Point the base URL of your client at http://127.0.0.1:8000/v1.", ["OpenAI", "/v1"]),
    ([f"{HOW} [use|call] throng from Python?", f"{HOW} connect [a client|my program|my app][ to throng|]?", f"{WHICH} the base URL?"],
     "Use the OpenAI library with base_url=\"http://127.0.0.1:8000/v1\" and any API key.", ["base_url"]),
    (["[which|what] endpoint is for chat?", "[which|what] URL [do I use|is] for chat?", "where do I send chat messages?"],
     "Send them to /v1/chat/completions.", ["/v1/chat/completions"]),
    (["[which|what] endpoint [lists|shows] the models?", f"{HOW} [list|see] the [models|served models|loaded models]?"],
     "Ask GET /v1/models.", ["/v1/models"]),
    (["[which|what] endpoint [counts|gives|makes] tokens?", f"{HOW} [count tokens|tokenize text|tokenize a text]?"],
     "Send the text to /tokenize. It returns the tokens and their count.", ["/tokenize"]),
    ([f"{HOW} [check|see] [if|whether] [throng|the server] [is running|is healthy|is up|is alive|works]?", "is there a health check?", "[which|what] endpoint is for health?"],
     "Ask GET /health. It answers 200 when the server is ready.", ["/health"]),
    (["does throng have metrics?", "[which|what] endpoint [has|gives|shows] [the |]metrics?", f"{HOW} [monitor throng|see the metrics|use Prometheus|use Grafana]?"],
     "GET /metrics gives Prometheus metrics under the vllm: names, so existing dashboards work.", ["/metrics"]),
    ([f"{HOW} [stream|get a stream|stream the answer|stream the answers|stream tokens]?", "does throng [stream|support streaming]?", "can I stream[ the answer|]?"],
     "Set \"stream\": true in the request. The tokens then come as server-sent events.", ["stream"]),
    ([f"{HOW} [stop throng|stop the server|shut down the server|end the server]?"],
     "Press Ctrl+C or send SIGTERM. Running answers are finished first, up to a limit.", ["SIGTERM"]),
    (["does throng need a GPU?", "[can|does] throng [run|work] [without a GPU|on a CPU|on my laptop]?", "do I need a GPU[ for throng|]?"],
     "No, Throng runs on the CPU.", ["CPU"]),
    (["does throng need [the internet|a network]?", "[can|does] throng [work|run] offline?", "do I need the internet?"],
     "No, Throng works offline once a model is on your disk.", ["offline"]),
    (["how many users can throng serve?", "can [many users|many people|several users] use throng [at once|at the same time]?", "does throng [batch|use batching]?"],
     "Many at once: Throng batches their requests in every step, so that they share one pass over the weights.", ["step"]),
    (["what is [continuous batching|iteration-level batching]?", "explain continuous batching."],
     "Continuous batching means that requests join and leave the batch at every step, so nobody waits for a whole batch to end.", ["batch"]),
    (["what is [a |the |][KV cache|paged KV cache|paged cache]?", "explain the KV cache.", "[what|how big] is a block of the KV cache?"],
     "The KV cache keeps the keys and values of past tokens. Throng keeps it in blocks of 16 tokens.", ["16 tokens"]),
    (["what is [the prefix cache|prefix caching]?", "explain prefix caching.", "does throng [cache prefixes|have a prefix cache]?"],
     "Prefix caching keeps the blocks of earlier prompts, so that a prompt with the same beginning starts faster.", ["beginning"]),
    ([f"{HOW} [choose|change|set] the [type of the KV cache|KV cache type|KV cache format]?", "[which|what] flag sets the KV cache type?"],
     "Use --kv-cache-dtype with auto, f32, f16 or q8_0.", ["--kv-cache-dtype"]),
    ([f"{HOW} [limit|set|change] the memory[ of the KV cache|]?", "how much memory does the KV cache use?", "[which|what] flag sets the cache memory?"],
     "Use --kv-cache-memory. Without it Throng takes a sensible part of the free memory.", ["--kv-cache-memory"]),
    ([f"{HOW} [rename|name|give a name to] the model?", f"{HOW} [change|set] the [served name|model name]?", "[which|what] flag sets the model name?"],
     "Use --served-model-name NAME.", ["--served-model-name"]),
    ([f"{HOW} get the same answer [twice|again|every time]?", "are the answers [deterministic|reproducible]?", "[what is|what does] seed[ for|]?"],
     "Set temperature to 0, or set a seed. The answer never depends on who else is being served.", ["seed"]),
    (["what is temperature?", "what does [the |]temperature do?", "explain temperature[ in sampling|]."],
     "Temperature says how much chance there is in the choice of the next token. At 0 the most likely token is taken.", ["token"]),
    (["what is a token?", "explain tokens.", "what are tokens?"], "A token is a piece of text, often a word or a part of one. Models read and write tokens.", ["piece of text"]),
    (["what is [a language model|a large language model|an LLM]?", "explain language models."],
     "A language model is a program that predicts the next piece of a text.", ["next"]),
    (["[what|which] language is throng written in?", "is throng written in Rust?", "in which language is throng written?"], "Throng is written in Rust.", ["Rust"]),
    (["[what|which] license does throng have?", "is throng [free|open source]?", f"{WHICH} the license of throng?"],
     "Throng is free and open source, under the Apache 2.0 license.", ["Apache"]),
    ([f"{HOW} [build|compile|install] throng?", "what do I need to build throng?"],
     "You need a Rust toolchain and a C compiler. Then run `cargo run --release`.", ["cargo run --release"]),
    ([f"{HOW} [run the tests|test throng]?", "[which|what] command runs the tests?"], "Run `cargo xtask test`.", ["cargo xtask test"]),
    (["what is throng-starter?", "what is the starter model?", "[which|what] model is this?", "[which|what] model [am I talking to|are you]?"],
     "throng-starter is the toy model that comes with Throng, so that the first command works offline. Load a real model for real work.", ["toy"]),
    (["can I use you for [real work|my work|my company|my homework]?", "[can I|should I] trust you?"],
     "Better not. I am a toy. Run `throng serve MODEL` with a real model.", ["toy"]),
    ([f"{HOW} set a system prompt?", "what is a system prompt?", "can I use a system prompt?"],
     "Send a first message with the role system. On the web page there is a field for it.", ["system"]),
]

ENDINGS = ["", "", "", "", "[, please|, thanks| please]"]


def make(rng: random.Random) -> Task:
    patterns, answer, words = rng.choice(INTENTS)
    prompt = question(rng.choice(patterns), rng)
    if prompt[-1] in "?." and rng.random() < 0.2:
        prompt = prompt[:-1] + expand(rng.choice(ENDINGS), rng) + prompt[-1]
    return ask(TOPIC, prompt, answer, contains(*words))
