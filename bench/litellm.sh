#!/bin/sh
# LiteLLM's proxy before one server, for `cargo run --release -p throng-bench -- --router "litellm=bench/litellm.sh {upstream} {port}"`.
# Needs `pip install 'litellm[proxy]'`; LITELLM names the program if it is not on the path.
set -eu
upstream=$1 port=$2
config=$(mktemp --suffix .yaml)
cat > "$config" <<EOF
model_list:
  - model_name: paper
    litellm_params: {model: openai/paper, api_base: "$upstream/v1", api_key: none}
litellm_settings: {telemetry: false}
EOF
# Without a key of its own it starts only if told so; it listens on the loopback address.
export LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY=true
exec "${LITELLM:-litellm}" --config "$config" --host 127.0.0.1 --port "$port" --num_workers 1
