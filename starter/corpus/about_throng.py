"""What Throng is and how to use it: every question in many wordings, one answer."""

import random

from corpus.intents import read_intents
from corpus.phrases import expand, question
from corpus.task import Task, ask, contains

TOPIC = "throng"

INTENTS = read_intents(
    "about_throng.txt",
    {
        "{how}": "[how do I|how can I|how to|what must I do to|tell me how to|can you tell me how to|what is the command to]",
        "{which}": "[what is|which is|tell me|what's]",
    },
)

ENDINGS = ["", "", "", "", "[, please|, thanks| please]"]


def make(rng: random.Random) -> Task:
    intent = rng.choice(INTENTS)
    prompt = question(rng.choice(intent.patterns), rng)
    if rng.random() < 0.5:
        prompt = prompt.replace("throng", "Throng")
    if prompt[-1] in "?." and rng.random() < 0.2:
        prompt = prompt[:-1] + expand(rng.choice(ENDINGS), rng) + prompt[-1]
    return ask(TOPIC, prompt, intent.answer, contains(*intent.words))
