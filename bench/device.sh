#!/bin/sh
# Measures a GPU in at most ten minutes, without a network: the tests of the backend, the machine's and the device's
# limits, then decode of 1 and 16 users and prompts of a model with the shape of Llama 3.1 8B, in Q8_0 and Q4_K, each
# beside its share of the measured limits. Weights are random.
#
#     cargo build --release && cargo test --no-run -p throng-gpu     # before, on any machine
#     bench/device.sh [vulkan:0]
#
# SHAPE=tiny SLOW=10 runs all of it on a driver in software: SLOW multiplies the time that each step has. TESTS=off leaves
# the tests out. OUT is the folder of the results, which has to hold the largest model (9 GB).
set -eu
device=${1:-vulkan:0}
shape=${SHAPE:-llama-8b}
out=${OUT:-$(mktemp -d)}
root=$(cd "$(dirname "$0")/.." && pwd)
throng=${THRONG:-$root/target/release/throng}
started=$(date +%s)
mkdir -p "$out"

say() {
    printf '[%3d s] %s\n' $(($(date +%s) - started)) "$*"
}

# Runs a command within a number of seconds, and goes on if it fails.
step() {
    name=$1 seconds=$(($2 * ${SLOW:-1}))
    shift 2
    say "$name"
    if timeout "$seconds" "$@" >"$out/$name.txt" 2>"$out/$name.log"; then
        cat "$out/$name.txt"
    else
        say "$name failed with status $?:"
        tail -n 5 "$out/$name.log"
        failed="${failed:-} $name"
    fi
}

step devices 60 "$throng" devices --probe-again
step machine 90 "$throng" bench machine --device "$device"
if [ "${TESTS:-on}" = on ]; then
    test=${TEST:-$(ls -t "$root"/target/debug/deps/integration-* "$root"/target/release/deps/integration-* 2>/dev/null |
        while read -r file; do
            if [ -x "$file" ] && "$file" --list 2>/dev/null | grep -q '^backend_suite::the_backend_passes'; then
                echo "$file"
                break
            fi
        done)}
    if [ -n "$test" ]; then
        export THRONG_REQUIRE_GPU=1
        step suite 60 "$test" backend_suite
        step golden 90 "$test" golden
        step sampling 30 "$test" sampling
    else
        say "no test program of throng-gpu: cargo test --no-run -p throng-gpu"
    fi
fi

case $shape in
tiny) prompt=64 generate=8 blocks=64MiB ;;
*) prompt=512 generate=64 blocks=8GiB ;;
esac
for type in q8_0 q4_k; do
    model=$out/$shape-$type.gguf
    step "weights-$type" 40 python3 "$root/bench/make_device_gguf.py" --shape "$shape" --type "$type" --out "$model"
    step "bench-$type" 95 "$throng" bench "$model" --device "$device" --concurrency 1,16 --prompt-tokens "$prompt" \
        --generate-tokens "$generate" --kv-cache-memory "$blocks" --temperature 0
    grep -E 'limits|ready|layers' "$out/bench-$type.log" || true
    rm -f "$model"
done
say "results are in $out"
[ -z "${failed:-}" ] || say "failed:$failed"
[ -z "${failed:-}" ]
