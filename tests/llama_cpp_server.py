"""llama.cpp's server from its Python wheel, as an engine for tests: python llama_cpp_server.py GGUF PORT [CONTEXT [embedding]]."""

import sys
import threading

import xllamacpp


def main():
    gguf, port, *rest = sys.argv[1:]
    params = xllamacpp.CommonParams()
    params.model.path = gguf
    params.model_alias = {"llama"}
    params.hostnames = ["127.0.0.1"]
    params.port = int(port)
    params.n_ctx = int(rest[0]) if rest else 512
    params.n_parallel = 1
    params.cpuparams.n_threads = 1
    params.cpuparams_batch.n_threads = 1
    if rest[1:] == ["embedding"]:
        params.embedding = True
        params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    threading.Event().wait()


main()
