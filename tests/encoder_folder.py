"""Makes encoders that read text of the fixtures of `crates/model`, which have no tokenizers."""

import json
import shutil

WORDS = ["the", "quick", "brown", "fox", "jump", "##ed", "##s", "over", "a", "lazy", "dog", "."]


def with_tokenizer(model, folder):
    """A copy of a model's folder with a WordPiece tokenizer, as BERT has them."""
    shutil.copytree(model, folder)
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS]
    special = [
        {"id": i, "content": vocabulary[i], "special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        for i in range(4)
    ]
    piece = lambda part, kind: {part: {"id": kind[0], "type_id": kind[1]}}
    frame = {
        "type": "TemplateProcessing",
        "single": [piece("SpecialToken", ("[CLS]", 0)), piece("Sequence", ("A", 0)), piece("SpecialToken", ("[SEP]", 0))],
        "pair": [
            piece("SpecialToken", ("[CLS]", 0)),
            piece("Sequence", ("A", 0)),
            piece("SpecialToken", ("[SEP]", 0)),
            piece("Sequence", ("B", 1)),
            piece("SpecialToken", ("[SEP]", 1)),
        ],
        "special_tokens": {name: {"id": name, "ids": [i], "tokens": [name]} for i, name in [(2, "[CLS]"), (3, "[SEP]")]},
    }
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": frame,
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {word: i for i, word in enumerate(vocabulary)},
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder
