"""The models through transformers: answers without a server, perplexity, and how often two models agree."""

import math
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from corpus.task import Task
from export import read_gguf

BATCH = 64


class LocalModel:
    """A Hugging Face folder in float32, or the same shape with the dequantized weights of a GGUF file."""

    def __init__(self, folder: Path, gguf_file: Path | None = None):
        self.tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        if gguf_file:
            weights = read_gguf(gguf_file, [name for name, _ in self.model.model.named_parameters()])
            self.model.model.load_state_dict({name: torch.from_numpy(value.copy()) for name, value in weights.items()})

    @torch.no_grad()
    def answers(self, tasks: list[Task], temperature: float, max_tokens: int) -> list[dict]:
        """The assistant's messages; greedy at temperature 0."""
        answers = []
        sampling = (
            {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature > 0 else {"do_sample": False}
        )
        order = sorted(range(len(tasks)), key=lambda index: len(str(tasks[index].tools)))
        for start in range(0, len(tasks), BATCH):
            chosen = [tasks[index] for index in order[start : start + BATCH]]
            texts = [
                self.tokenizer.apply_chat_template(
                    task.messages, tools=task.tools or None, tokenize=False, add_generation_prompt=True
                )
                for task in chosen
            ]
            inputs = self.tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
            inputs.pop("token_type_ids", None)
            output = self.model.generate(**inputs, max_new_tokens=max_tokens, **sampling)
            answers += [self.answer_of(tokens) for tokens in output[:, inputs["input_ids"].shape[1] :]]
        return [answer for _, answer in sorted(zip(order, answers), key=lambda pair: pair[0])]

    def answer_of(self, tokens: Tensor) -> dict:
        ended = self.tokenizer.eos_token_id in tokens.tolist()
        content = self.tokenizer.decode(tokens, skip_special_tokens=True)
        return {"content": content, "finish_reason": "stop" if ended else "length"}

    @torch.no_grad()
    def predictions(self, pair: tuple[list[int], list[bool]]) -> tuple[Tensor, Tensor]:
        """Log-probabilities [n, vocabulary] where the assistant speaks, and the n tokens it says."""
        tokens, said = torch.tensor(pair[0]), torch.tensor(pair[1])
        logits = self.model(tokens[None]).logits[0, :-1]
        return logits[said[1:]].log_softmax(-1), tokens[1:][said[1:]]


def perplexity(model: LocalModel, pairs: list) -> float:
    """Of the assistant's tokens of whole conversations."""
    total, count = 0.0, 0
    for pair in pairs:
        logprobs, targets = model.predictions(pair)
        total -= logprobs.gather(1, targets[:, None]).sum().item()
        count += len(targets)
    return math.exp(total / count)


def agreement(model: LocalModel, draft: LocalModel, pairs: list) -> float:
    """Share of the assistant's tokens at which both models think the same token the most likely."""
    same = count = 0
    for pair in pairs:
        ours, theirs = model.predictions(pair)[0].argmax(-1), draft.predictions(pair)[0].argmax(-1)
        same += (ours == theirs).sum().item()
        count += len(ours)
    return same / count
