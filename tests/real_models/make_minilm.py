"""Makes `minilm.json`, the vectors of sentence-transformers: `python make_minilm.py` where sentence-transformers is installed.

What is here was made with sentence-transformers 6.2.0, transformers 5.24.0 and torch 2.15.0 on a CPU.
"""

import json
from pathlib import Path

import packages
from sentence_transformers import SentenceTransformer

TEXTS = [
    "A man is eating food.",
    "A man is eating a piece of bread.",
    "The girl is carrying a baby.",
    "Ça coûte 5 € à l'hôtel — naïve café",
    "机器学习 is machine learning",
    "def add(a, b):\n    return a + b",
    "HELLO   World!!!",
    "word " * 300,
    "🙂🙂 emoji",
    "\ttabs\nand lines\r\n",
]

model = SentenceTransformer(str(packages.minilm()), device="cpu")
# One at a time: texts of a batch are padded, which changes last digits.
vectors = model.encode(TEXTS, batch_size=1)
rounded = [[round(float(x), 6) for x in vector] for vector in vectors]
Path(__file__).with_name("minilm.json").write_text(json.dumps({"texts": TEXTS, "vectors": rounded}) + "\n")
