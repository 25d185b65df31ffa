#!/usr/bin/env python3
"""A small server of vectors by sentence-transformers, for the comparison: `POST /v1/embeddings` with texts as token ids.

The model has the shape of BGE-M3 and random weights, and its tokenizer makes one token of each word, so that a text has as many
tokens as ids were sent. Needs sentence-transformers; requests are answered one after the other.
"""

import argparse
import http.server
import json
from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Normalize, Pooling, Transformer
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModel, PreTrainedTokenizerFast, XLMRobertaConfig

VOCABULARY = 250002
#: The padding token of XLM-RoBERTa, and the positions of its table, the first two of which are not used.
PAD, POSITIONS = 1, 8194


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where the model is kept, made when absent")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--port", type=int, required=True)
    return parser.parse_args()


def make(folder):
    """Writes the model and its tokenizer."""
    config = XLMRobertaConfig(
        vocab_size=VOCABULARY,
        hidden_size=1024,
        num_hidden_layers=24,
        num_attention_heads=16,
        intermediate_size=4096,
        max_position_embeddings=POSITIONS,
        pad_token_id=PAD,
        type_vocab_size=1,
    )
    torch.manual_seed(0)
    AutoModel.from_config(config).save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel({str(token): token for token in range(VOCABULARY)}, unk_token="3"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    limits = {"model_max_length": POSITIONS - 2, "pad_token": str(PAD), "unk_token": "3"}
    # Last: its presence says that the folder is whole.
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **limits).save_pretrained(folder)


def load(folder, dtype):
    if not (folder / "tokenizer.json").exists():
        make(folder)
    transformer = Transformer(str(folder), model_args={"dtype": getattr(torch, dtype)})
    pooling = Pooling(transformer.get_word_embedding_dimension(), pooling_mode="cls")
    return SentenceTransformer(modules=[transformer, pooling, Normalize()], device="cpu")


def handler(model):
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            self.answer({"status": "ok"})

        def do_POST(self):
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            texts = [" ".join(map(str, text)) for text in request["input"]]
            vectors = model.encode(texts, show_progress_bar=False)
            self.answer({"data": [{"index": i, "embedding": vector.tolist()} for i, vector in enumerate(vectors)]})

        def answer(self, body):
            body = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    return Handler


def main():
    settings = arguments()
    torch.set_num_threads(settings.threads)
    model = load(settings.folder, settings.dtype)
    n_tokens = len(model.tokenize(["5 6 7"])["input_ids"][0])
    assert n_tokens == 3, f"three words became {n_tokens} tokens"
    http.server.HTTPServer(("127.0.0.1", settings.port), handler(model)).serve_forever()


if __name__ == "__main__":
    main()
