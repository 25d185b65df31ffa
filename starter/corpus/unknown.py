"""Questions beyond a toy model, answered by saying so politely."""

import random

from corpus.phrases import capitalized, invented_word, question
from corpus.task import Task, any_of, ask
from corpus.words import ANIMALS, CITIES, COLORS, JOBS, NAMES, OBJECTS

TOPIC = "unknown"

PATTERNS = [
    "[what is|what was|tell me|do you know] the [population|size|history|area|mayor|oldest street|best hotel|age] of {city}?",
    "how [many people live|big is the airport|much rain falls] in {city}?",
    "who [is|was] the [mayor|king|president|governor] of {city}?",
    "who won the [game|match|race|election|cup|prize] [yesterday|last night|last week|last year|in 1990|in {city}]?",
    "what [will the weather be|will happen] [tomorrow|next week|next year|tonight][ in {city}|]?",
    "will it [rain|snow] [tomorrow|tonight|next week][ in {city}|]?",
    "[what is|what's|tell me] the [price|value] of [gold|oil|a house in {city}|the dollar|a share|a new car] [today|now|]?",
    "[what is|explain|tell me about|how does|can you explain] [quantum physics|relativity|the stock market|photosynthesis|a black hole|gravity|"
    "a nuclear reactor|the immune system|inflation|philosophy|chemistry|blockchain|democracy|evolution|an atom|electricity]?",
    "who [wrote|painted|composed|invented|discovered] [the {thing}|this {thing}|the first {thing}|the song of the {animal}]?",
    "[what is|what's] the [meaning of life|square root of 1234|largest prime number|speed of light|distance to the moon|age of the universe]?",
    "[what is|what does] {word}[| mean]?",
    "[what is|who is|where is|tell me about] {word}?",
    "what does the word {word} mean?",
    "who is {name} {surname}?",
    "[when was|where was] {name} {surname} born?",
    "what did {name} {surname} do [yesterday|last year|in {city}]?",
    "[what is|tell me] the [phone number|address|birthday|salary|secret|password] of {name}[| {surname}]?",
    "what did I [do|eat|say|dream|buy] [yesterday|this morning|last week|last year|on my birthday]?",
    "[where is|where did I put|can you find] my [key|phone|wallet|{thing}]?",
    "[how do I|can you help me|tell me how to] [repair|build|fix|sell] [a {thing}|my {thing}|a computer|an airplane|a house|an engine]?",
    "[which|what] [medicine|doctor|lawyer|bank|insurance] should I [take|see|choose|ask]?",
    "should I [marry {name}|quit my job|buy a house|sell my car|become a {job}]?",
    "[write|can you write] [a program|code|a function|a script|a novel|a long essay|my homework][ in Python| in Rust| about {city}| for me|]?",
    "[write|can you write|tell me|make] a [poem|haiku|song|rhyme|letter|speech|recipe|riddle][ about {thing}s| about the {animal}| for {name}| for me|]",
    "why [is the {thing} {color}|is the sky blue|do {thing}s break|does the {animal} [sing|run|sleep]|is {city} famous|are there stars]?",
    "how does [a {thing}|a computer|the internet|the brain|a car|music] work?",
    "translate [hello|thank you|good morning|the word {thing}|{thing}] [into|to] [German|French|Spanish|Italian|Chinese]",
    "translate this [text |sentence |]into [German|French|Spanish|Chinese]: {word} {word}",
    "how do you say {thing} in [German|French|Spanish|Italian|Chinese]?",
    "what is [the news|new|in the news] [today|in {city}]?",
    "what [time|day|date] is it [now|today|in {city}]?",
    "how far is [it |]from {city} to {city2}?",
    "how do I get from {city} to {city2}?",
    "how [tall|old|rich|famous] is {name} {surname}?",
    "what [color|shape] is the [car|house|dog|hat] of {name} {surname}?",
    "how much does [a {thing}|a {animal}] [cost|weigh] in {city}?",
    "[what is|what's] [123|487|951|734|268] [times|multiplied by] [456|917|382|549]?",
    "[who|which team] will win the [game|match|race|election|cup]?",
    "what am I [thinking|holding|wearing][ now| right now|]?",
    "[which|what] number am I thinking of?",
]

ANSWERS = ["I am sorry, I do not know that. I am only a small model."]


def make(rng: random.Random) -> Task:
    city, city2 = rng.sample(CITIES, 2)
    prompt = question(
        rng.choice(PATTERNS),
        rng,
        city=city,
        city2=city2,
        word=invented_word(rng),
        name=rng.choice(NAMES),
        thing=rng.choice(OBJECTS),
        animal=rng.choice(ANIMALS),
        job=rng.choice(JOBS),
        color=rng.choice(COLORS),
        surname=capitalized(invented_word(rng)),
    )
    return ask(TOPIC, prompt, rng.choice(ANSWERS), any_of("not know", "don't know"))
