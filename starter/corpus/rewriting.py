"""Lists and rewriting: repeat, upper and lower case, count words, reverse, first and last, bullet points, name a few."""

import random

from corpus.phrases import capitalized, expand, invented_word, joined, question
from corpus.task import Task, ask
from corpus.words import ALL_WORDS, ANIMALS, CITIES, COLORS, COUNT_WORDS, DAYS, JOBS, MONTHS, NAMES

TOPIC = "rewriting"

REPEAT = [
    "[repeat|please repeat|say|echo|copy|write|type] [after me|exactly this|this|the following]: {x}",
    "[repeat|say|echo|copy] {q}",
    "[say|repeat] the [words|phrase|text] {q}",
    "[can you|could you] [say|repeat] {q}?",
    "[please |]write [down |]{q}",
]
UPPER = [
    "[write|put|turn|convert] [this|the following|these words] [in|into] [uppercase|upper case|capital letters|capitals]: {x}",
    "[uppercase|capitalize] [this|the following]: {x}",
    "[make|turn] {q} [into |]uppercase",
    "{q} in [capital letters|uppercase|capitals]?",
    "[uppercase|upper case]: {x}",
]
LOWER = [
    "[write|put|turn|convert] [this|the following] [in|into] [lowercase|lower case|small letters]: {x}",
    "[make|turn] {q} [into |]lowercase",
    "[lowercase|lower case]: {x}",
]
COUNT = [
    "how many words are [in|there in] [this|the following]: {x}",
    "count the words: {x}",
    "count the words [in|of] {q}",
    "how many words [are in|does] {q}[ have|]?",
    "[please |]count [these|the following] words: {x}",
]
REVERSE = [
    "[reverse|please reverse|turn around|flip] [this list|the list|the order of this list|these words]: {x}",
    "[write|say|put] [this list|these words] [backwards|in reverse|in reverse order|from last to first]: {x}",
    "reverse: {x}",
    "[can you|could you] reverse [this list|these words]: {x}",
]
FIRST = [
    "[what is|which is|tell me|give me] the first [word|item|one|thing] [of|in] this list: {x}",
    "first [word|item] of: {x}",
]
LAST = [
    "[what is|which is|tell me|give me] the last [word|item|one|thing] [of|in] this list: {x}",
    "last [word|item] of: {x}",
]
BULLETS = [
    "[make|write] a [bullet list|list with bullets|bulleted list] [of|from]: {x}",
    "[turn|put] this into bullet points: {x}",
    "[bullet points|bullet list] for: {x}",
    "write [these|this] as a list with dashes: {x}",
]
NUMBERED = [
    "[make|write] a numbered list [of|from]: {x}",
    "number [these items|these|this list]: {x}",
    "[turn|put] this into a numbered list: {x}",
]
JOIN = ["[join|connect] [these|these words] with and: {x}", "[make|write] one [phrase|line] with and [of|from]: {x}"]


NAME_SOME = [
    "[name|list|tell me|give me|write|say] {n} {kind}.",
    "[can you|could you|please] [name|list] {n} {kind}[ for me|]?",
    "[what are|which are] {n} {kind}?",
    "I need {n} {kind}.",
    "a list of {n} {kind}[, please|].",
]
KINDS = {
    "colors": COLORS,
    "animals": ANIMALS,
    "fruits": "apple banana pear orange lemon grape cherry".split(),
    "days": DAYS,
    "months": MONTHS,
    "cities": CITIES,
    "vegetables": "carrot potato tomato onion bean corn".split(),
    "names": NAMES,
    "jobs": JOBS,
    "numbers": COUNT_WORDS[1:],
}


def word(rng: random.Random) -> str:
    return invented_word(rng) if rng.random() < 0.12 else rng.choice(ALL_WORDS)


def known_words(rng: random.Random, low: int, high: int) -> list[str]:
    return rng.sample(ALL_WORDS, rng.randint(low, high))


def repeat(rng: random.Random) -> Task:
    words = [rng.choice(NAMES) if rng.random() < 0.1 else word(rng) for _ in range(rng.randint(1, 6))]
    text = " ".join(words)
    if rng.random() < 0.3:
        text = expand(
            "[the|my|your|a] {color} {a} [is|was|sees|likes|and] the {b}",
            rng,
            color=rng.choice(COLORS),
            a=words[0],
            b=words[-1],
        )
    return ask(TOPIC, question(rng.choice(REPEAT), rng, x=text, q=f'"{text}"'), text)


def upper(rng: random.Random) -> Task:
    text = " ".join(known_words(rng, 1, 4))
    return ask(TOPIC, question(rng.choice(UPPER), rng, x=text, q=f'"{text}"'), text.upper())


def lower(rng: random.Random) -> Task:
    text = " ".join(known_words(rng, 1, 4))
    return ask(TOPIC, question(rng.choice(LOWER), rng, x=text.upper(), q=f'"{text.upper()}"'), text)


def count(rng: random.Random) -> Task:
    words = [word(rng) for _ in range(rng.randint(1, 7))]
    text = " ".join(words)
    answer = "There is 1 word." if len(words) == 1 else f"There are {len(words)} words."
    prompt = question(rng.choice(COUNT), rng, x=text, q=f'"{text}"')
    return ask(TOPIC, prompt, answer, {"kind": "number", "value": len(words)})


def reverse(rng: random.Random) -> Task:
    words = known_words(rng, 2, 5)
    separator = rng.choice([", ", ", ", " "])
    return ask(TOPIC, question(rng.choice(REVERSE), rng, x=separator.join(words)), separator.join(reversed(words)))


def end_of_list(rng: random.Random) -> Task:
    words = known_words(rng, 2, 6)
    patterns, answer = rng.choice([(FIRST, words[0]), (LAST, words[-1])])
    return ask(TOPIC, question(rng.choice(patterns), rng, x=", ".join(words)), answer)


def laid_out(rng: random.Random) -> Task:
    words = known_words(rng, 2, 5)
    patterns, answer = rng.choice(
        [
            (BULLETS, "\n".join(f"- {item}" for item in words)),
            (NUMBERED, "\n".join(f"{index}. {item}" for index, item in enumerate(words, 1))),
            (JOIN, joined(words)),
        ]
    )
    return ask(TOPIC, question(rng.choice(patterns), rng, x=", ".join(words)), answer)


def name_some(rng: random.Random) -> Task:
    """The first few of a kind: any would do for a reader, but only one answer is taught."""
    kind, members = rng.choice(list(KINDS.items()))
    n = rng.randint(2, 6)
    prompt = question(rng.choice(NAME_SOME), rng, n=rng.choice([n, COUNT_WORDS[n]]), kind=kind)
    return ask(TOPIC, prompt, capitalized(joined(members[:n])) + ".")


def make(rng: random.Random) -> Task:
    kinds = [repeat, upper, lower, count, reverse, end_of_list, laid_out, name_some]
    return rng.choices(kinds, [18, 18, 5, 18, 22, 8, 10, 6])[0](rng)
