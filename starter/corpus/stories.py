"""Very short stories about everyday things, with the names and objects of the request."""

import random

from corpus.phrases import capitalized, expand, invented_word, question
from corpus.task import Task, ask
from corpus.words import ANIMALS, BOYS, COLORS, GIRLS, OBJECTS

TOPIC = "stories"

STORY_PLACES = (
    "park garden forest school kitchen market library farm castle village city house tower station museum zoo".split()
)

ONE_HERO = [
    "[tell me|write|write me|can you tell me|please tell me|make up|I want|give me] a [short |little |tiny |very short |nice |funny |]story about {hero} and {thing}.",
    "[tell me|write|write me|can you write|please write|make up] a [short |little |tiny |nice |]story with {hero} and {thing}.",
    "a [short |little |tiny |]story about {hero} and {thing}, please.",
    "story about {hero} and {thing}.",
    "[tell|write] a [short |little |]story in which {hero} finds {thing}.",
    "[do you know|can you tell] a story about {hero} and {thing}?",
    "[tell me|write] a [short |little |]story: {hero}, {thing}.",
]
WITH_PLACE = [
    "[tell me|write|write me|please write|make up] a [short |little |tiny |]story about {hero} and {thing} in the {place}.",
    "[tell me|write] a [short |little |]story about {hero}, {thing} and the {place}.",
    "a story about {hero} in the {place} with {thing}, please.",
]

FREE = [
    "[tell me|write|write me|can you tell me|please tell me|make up|I want|give me|tell] a [short |little |nice |funny |new |]story[, please|| for me|].",
    "[tell me|write|I want] [another|one more] story.",
    "[a|another|one more] story[, please|].",
]
HERO_ONLY = [
    "[tell me|write|write me|make up|tell] a [short |little |nice |]story about {hero}.",
    "a [short |little |]story about {hero}[, please|].",
]
THING_ONLY = [
    "[tell me|write|write me|make up|tell] a [short |little |nice |]story about {thing}.",
    "a [short |little |]story about {thing}[, please|].",
]

OPENINGS = [
    "One [sunny|rainy|cold|warm|windy|quiet] [morning|day|afternoon], {name} went to the {place}.",
    "{name} lived near the {place}.",
    "Once there was {a_hero} called {name}.",
    "{name} was alone in the {place} that day.",
    "It was a [sunny|rainy|cold|warm|windy] [morning|day] in the {place}.",
]
FINDS = [
    "There {name} [saw|found|noticed] a {color} {thing} [under a tree|near a wall|behind a bench|on a big stone|in the grass].",
    "Near a [tree|wall|gate|bench], {name} found a {color} {thing}.",
    "{name} had a {color} {thing} and took it everywhere.",
    "{name} wanted to have a {thing} more than anything else.",
    "On the [table|floor|road|stairs] lay a {color} {thing}.",
    "{friend} gave {name} a {color} {thing} [for the birthday|as a present|in a paper bag].",
]
TROUBLES = [
    "But the {thing} was [broken|too heavy|full of dust|stuck|lost the next day].",
    "Then a {animal} came and took the {thing}.",
    "Suddenly the wind blew and the {thing} rolled away.",
    "A {animal} was sitting next to the {thing} and looked sad.",
    "The {thing} fell into the [water|mud|snow|leaves].",
    "Then it began to rain, and the {thing} got wet.",
    "But {friend} was looking for that {thing}.",
    '"Is this your {thing}?" asked a small {animal}.',
]
HELPS = [
    "{name} called {friend}, and together they [fixed it|looked for it|carried it home|cleaned it|solved the problem].",
    "{friend} came to help, and soon [all was well|the {thing} was safe|the work was done].",
    "{He} [thought for a while|took a deep breath|smiled] and had an idea.",
    "{name} asked {friend} for help, and {friend} said yes.",
    "So {name} sat down and waited [quietly|for an hour|until the evening].",
    "{name} gave the {animal} some [bread|milk|water|cake], and it [became a friend|gave the {thing} back|was happy].",
]
ENDINGS = [
    "In the end {name} was very happy.",
    "From that day on, {name} and {friend} were best friends.",
    "That night {name} slept well and dreamed of the {thing}.",
    "{name} laughed and went home with the {thing}.",
    "Everybody in the {place} was glad.",
    "And {name} never forgot that day.",
    "Now the {thing} has a place next to the bed of {name}.",
    "They all ate cake and were happy.",
]


def make(rng: random.Random) -> Task:
    girl = rng.random() < 0.5
    names = GIRLS if girl else BOYS
    animal, other = rng.sample(ANIMALS, 2)
    animal = animal if rng.random() > 0.1 else invented_word(rng)
    place, thing = rng.choice(STORY_PLACES), rng.choice(OBJECTS) if rng.random() > 0.05 else invented_word(rng)
    name, friend = rng.choice(names), rng.choice(BOYS if girl else GIRLS)
    if rng.random() < 0.12:
        name = capitalized(invented_word(rng))
    hero, kind = name, "girl" if girl else "boy"
    if rng.random() < 0.25:
        kind = animal
        hero = expand("[a|the] {animal}", rng, animal=animal) if rng.random() < 0.5 else f"a {animal} called {name}"
    kinds_of_request = [ONE_HERO, WITH_PLACE, FREE, HERO_ONLY, THING_ONLY]
    pattern = rng.choice(rng.choices(kinds_of_request, [55, 25, 6, 8, 6])[0])
    asked_thing = expand("[a|a|the|a {color}]", rng, color=(color := rng.choice(COLORS))) + " " + thing
    prompt = question(pattern, rng, hero=hero, thing=asked_thing, place=place)
    if hero.endswith(animal) and kind == animal:
        name = "the " + animal
    filled = {
        "name": name,
        "friend": friend,
        "thing": thing,
        "place": place,
        "color": color,
        "animal": other,
        "a_hero": f"a {kind}",
        "He": "It" if kind == animal else ("She" if girl else "He"),
    }
    openings = [line for line in OPENINGS if not name.startswith("the ") or "called" not in line]
    lines = [rng.choice(openings), rng.choice(FINDS), rng.choice(TROUBLES), rng.choice(HELPS), rng.choice(ENDINGS)]
    story = " ".join(capitalized(expand(line, rng, **filled)) for line in lines)
    asked_for = {"{hero}": hero.split()[-1], "{thing}": thing, "{place}": place}
    mentions = [word for slot, word in asked_for.items() if slot in pattern]
    if not all(word.lower() in story.lower() for word in mentions):
        return make(rng)
    return ask(TOPIC, prompt, story, {"kind": "story", "mentions": mentions})
