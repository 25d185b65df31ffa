"""Writes `mistral_ids.json`: the ids that mistral-common and SentencePiece give to texts, by the vocabulary files of mistral-common.

    pip install mistral-common==1.13.1 sentencepiece==0.2.3 && python make_mistral_ids.py
"""

import json
from pathlib import Path

import packages
import sentencepiece
from mistral_common.tokens.tokenizers.tekken import Tekkenizer

HERE = Path(__file__).parent
TEXTS = [
    *json.loads((HERE / "minilm.json").read_text())["texts"],
    packages.TEXT.read_text(),
    "Straße, naïve café. Привет, мир! 你好，世界。汉字和English混合 🙂👋🏽👨‍👩‍👧 ﬁ Ⅷ ½",
    "def f(x):\n\treturn x  # 12345678\r\n\n\n" + " " * 50 + "HELLO heLLo It's I'LL",
]


def main():
    folder = packages.mistral_vocabularies()
    tekken = Tekkenizer.from_file(folder / "tekken.json")
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    ids = {
        "tekken.json": [tekken.encode(text, bos=False, eos=False) for text in TEXTS],
        "tokenizer.model": [pieces.encode(text) for text in TEXTS],
    }
    (HERE / "mistral_ids.json").write_text(json.dumps({"texts": TEXTS, "ids": ids}, ensure_ascii=False) + "\n")


main()
