"""Tests of the training text. Needs nothing but Python: `python3 -m unittest discover -s starter`."""

import hashlib
import json
import random
import unittest

from corpus.generate import TOPICS, conversations, evaluation_tasks
from corpus.task import Task, normalized
from judge import is_right


def answered(task: Task, content: str) -> bool:
    return is_right(task, {"content": content, "finish_reason": "stop"})


class Corpus(unittest.TestCase):
    def test_same_seed_same_text(self):
        digests = {hashlib.sha256(json.dumps(list(conversations(7, 500))).encode()).hexdigest() for _ in range(2)}
        self.assertEqual(len(digests), 1)

    def test_every_answer_passes_its_own_check(self):
        for topic, make in TOPICS.items():
            rng = random.Random(f"own/{topic}")
            for _ in range(1000):
                task = make(rng)
                self.assertTrue(is_right(task, {**task.answer, "finish_reason": "stop"}), task)

    def test_nonsense_fails_every_check(self):
        rng = random.Random("other")
        for make in TOPICS.values():
            for _ in range(200):
                task = make(rng)
                self.assertFalse(answered(task, "Qwxz."), task)

    def test_held_out_prompts_are_not_in_the_training_text(self):
        kept = {task.prompts()[-1] for tasks in evaluation_tasks(20, 60).values() for task in tasks}
        self.assertGreater(len(kept), 500)
        for messages, _ in conversations(3, 20_000):
            said = {normalized(message["content"]) for message in messages if message["role"] == "user"}
            self.assertFalse(said & kept)

    def test_a_truncated_answer_is_wrong(self):
        task = TOPICS["facts"](random.Random(1))
        self.assertFalse(is_right(task, {**task.answer, "finish_reason": "length"}))


if __name__ == "__main__":
    unittest.main()
