"""Tests that neither workers nor a stop change a training. Skipped where the packages of the recipe are missing."""

import importlib.util
import tempfile
import unittest
from functools import partial
from itertools import islice
from pathlib import Path

HAS_PACKAGES = all(importlib.util.find_spec(name) for name in ("torch", "tokenizers", "gguf", "jinja2"))
BATCH_TOKENS = 3072


@unittest.skipUnless(HAS_PACKAGES, "needs starter/.venv/bin/python")
class Training(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        from tokenizer import train_tokenizer

        with tempfile.TemporaryDirectory() as folder:
            cls.tokenizer = train_tokenizer(Path(folder) / "tokenizer.json", 1, 4000)

    def test_workers_make_the_same_batches(self):
        import torch

        from batches import ahead, batches

        expected = list(islice(batches(self.tokenizer, 2, BATCH_TOKENS), 3))
        source = ahead(batches(self.tokenizer, 2, BATCH_TOKENS, n_workers=2))
        for batch, other in zip(expected, source):
            for part, same in zip(batch, other):
                self.assertTrue(torch.equal(part, same))
        source.close()

    def test_every_size_has_full_batches_and_quantizes(self):
        from batches import LENGTHS
        from recipe import RECIPES, SIZES

        self.assertEqual({name for names in SIZES.values() for name in names}, set(RECIPES))
        for recipe in RECIPES.values():
            config = recipe.config
            self.assertTrue(all(recipe.batch_tokens % length == 0 for length in LENGTHS))
            widths = (config.hidden, config.intermediate, config.n_heads * config.head_dim)
            self.assertTrue(all(width % 32 == 0 for width in widths))
            self.assertEqual(config.vocabulary, self.tokenizer.get_vocab_size())

    def test_a_resumed_run_equals_an_uninterrupted_one(self):
        import torch

        from batches import batches
        from train import Run

        def steps(run, first, last):
            source = batches(self.tokenizer, 3, BATCH_TOKENS, first)
            for step in range(first, last):
                run.step(step, next(source), None)
            return run.model.state_dict()

        with tempfile.TemporaryDirectory() as folder:
            start = partial(Run, "throng-starter-draft", 10, torch.device("cpu"), Path(folder))
            whole = {key: value.clone() for key, value in steps(start(), 0, 4).items()}
            stopped = start()
            steps(stopped, 0, 2)
            stopped.save(2)
            resumed = start()
            self.assertEqual(resumed.first, 2)
            for key, value in steps(resumed, 2, 4).items():
                self.assertTrue(torch.equal(value, whole[key]), key)


if __name__ == "__main__":
    unittest.main()
