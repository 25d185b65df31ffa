"""Everyday facts. Each table: question patterns, an answer pattern, and the facts themselves."""

from dataclasses import dataclass

from corpus.words import DAYS, MONTHS


@dataclass(frozen=True)
class Table:
    """`{x}` is what is asked about, `{y}` what is answered."""

    questions: list[str]
    answer: str
    facts: dict[str, str]


def pairs(text: str) -> dict[str, str]:
    """`a: b, c: d` as a dictionary."""
    return dict(pair.split(": ") for pair in " ".join(text.split()).split(", "))


def shifted(names: list[str], by: int) -> dict[str, str]:
    return {name: names[(index + by) % len(names)] for index, name in enumerate(names)}


CAPITALS = pairs("""
    France: Paris, Germany: Berlin, Italy: Rome, Spain: Madrid, Portugal: Lisbon, Austria: Vienna, Poland: Warsaw,
    Norway: Oslo, Sweden: Stockholm, Finland: Helsinki, Denmark: Copenhagen, Ireland: Dublin, Greece: Athens,
    Hungary: Budapest, Belgium: Brussels, Switzerland: Bern, England: London, Scotland: Edinburgh, Iceland: Reykjavik,
    Russia: Moscow, Turkey: Ankara, Egypt: Cairo, Kenya: Nairobi, Morocco: Rabat, Ghana: Accra, Japan: Tokyo,
    China: Beijing, India: New Delhi, Thailand: Bangkok, Vietnam: Hanoi, South Korea: Seoul, Australia: Canberra,
    Canada: Ottawa, Mexico: Mexico City, Brazil: Brasilia, Argentina: Buenos Aires, Chile: Santiago, Peru: Lima,
    Cuba: Havana, Colombia: Bogota""")

OPPOSITES = pairs("""
    hot: cold, big: small, fast: slow, up: down, left: right, day: night, black: white, good: bad, happy: sad, old: new,
    long: short, hard: soft, open: closed, full: empty, high: low, light: dark, rich: poor, strong: weak, young: old,
    wet: dry, loud: quiet, clean: dirty, early: late, first: last, front: back, inside: outside, true: false, win: lose,
    love: hate, push: pull, thick: thin, wide: narrow, deep: shallow, sweet: sour, heavy: light, near: far, yes: no,
    begin: end, buy: sell, give: take, laugh: cry, north: south, east: west, summer: winter, always: never""")

COLORS = pairs("""
    grass: green, the sky: blue, snow: white, coal: black, a banana: yellow, a lemon: yellow, a tomato: red, blood: red,
    a carrot: orange, an orange: orange, the sun: yellow, milk: white, chocolate: brown, a frog: green, a polar bear: white,
    a flamingo: pink, a strawberry: red, an elephant: grey, the sea: blue, a pumpkin: orange, a crow: black, a cucumber: green,
    salt: white, an eggplant: purple, honey: gold, a pea: green, a cherry: red, rice: white, a lime: green, cheese: yellow""")

SOUNDS = pairs("""
    dog: woof, cat: meow, cow: moo, sheep: baa, pig: oink, duck: quack, horse: neigh, lion: roar, bee: buzz, snake: hiss,
    frog: croak, owl: hoot, mouse: squeak, wolf: howl, hen: cluck, donkey: hee-haw, bird: tweet""")

BABIES = pairs("""
    dog: puppy, cat: kitten, cow: calf, horse: foal, sheep: lamb, goat: kid, pig: piglet, hen: chick, duck: duckling,
    lion: cub, bear: cub, deer: fawn, frog: tadpole, swan: cygnet, kangaroo: joey, owl: owlet, goose: gosling""")

LEGS = pairs("""
    dog: 4, cat: 4, bird: 2, hen: 2, spider: 8, ant: 6, bee: 6, horse: 4, cow: 4, snake: 0, fish: 0, duck: 2, lion: 4,
    penguin: 2, butterfly: 6, elephant: 4, frog: 4, beetle: 6, worm: 0, goat: 4""")

HOMES = pairs("""
    bird: a nest, bee: a hive, fish: the water, bear: a cave, rabbit: a burrow, horse: a stable, spider: a web,
    ant: an anthill, fox: a den, dog: a kennel, cow: a barn, whale: the sea, camel: the desert, monkey: the jungle,
    penguin: the snow, squirrel: a tree""")

FOOD_OF = pairs("""
    rabbit: carrots, cow: grass, monkey: bananas, mouse: cheese, cat: fish, panda: bamboo, bee: nectar, squirrel: nuts,
    dog: meat, horse: hay, lion: meat, frog: flies, koala: leaves, penguin: fish, bird: seeds, goat: grass""")

JOB_PLACES = pairs("""
    teacher: a school, doctor: a hospital, baker: a bakery, farmer: a farm, nurse: a hospital, pilot: an airplane,
    cook: a kitchen, sailor: a ship, gardener: a garden, librarian: a library, actor: a theater, judge: a court,
    waiter: a restaurant, scientist: a laboratory""")

AMOUNTS = pairs("""
    days are in a week: 7, months are in a year: 12, hours are in a day: 24, minutes are in an hour: 60,
    seconds are in a minute: 60, days are in a year: 365, legs does a spider have: 8, seasons are in a year: 4,
    fingers are on one hand: 5, fingers do people have: 10, sides does a triangle have: 3, sides does a square have: 4,
    wheels does a car have: 4, wheels does a bicycle have: 2, letters are in the alphabet: 26, eyes do people have: 2,
    planets are in the solar system: 8, colors are in a rainbow: 7, strings does a violin have: 4, weeks are in a year: 52,
    cents are in a dollar: 100, eggs are in a dozen: 12, continents are there: 7, toes do people have: 10""")

USES = pairs("""
    key: open a door, pen: write, knife: cut, spoon: eat soup, umbrella: stay dry in the rain, clock: tell the time,
    lamp: make light, bed: sleep, car: drive, book: read, scissors: cut paper, broom: sweep the floor, cup: drink,
    needle: sew, camera: take pictures, soap: wash your hands, phone: call people, oven: bake, map: find the way,
    ladder: climb up, hammer: hit nails, fridge: keep food cold""")

KINDS = pairs("""
    apple: a fruit, carrot: a vegetable, dog: an animal, rose: a flower, oak: a tree, red: a color, chair: a piece of furniture,
    guitar: an instrument, hammer: a tool, gold: a metal, Monday: a day, July: a month, eagle: a bird, salmon: a fish,
    football: a sport, shirt: a piece of clothing, bus: a vehicle, banana: a fruit, potato: a vegetable, iron: a metal,
    piano: an instrument, blue: a color, ant: an insect, bee: an insect, chess: a game, tulip: a flower""")

ORDINALS = "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth".split()

TABLES = [
    Table(
        [
            "[what is|what's|name|tell me|do you know] the capital [city |]of {x}?",
            "which city is the capital of {x}?",
            "{x}: what is the capital?",
            "[what|which] capital does {x} have?",
            "capital of {x}?",
        ],
        "The capital of {x} is {y}.",
        CAPITALS,
    ),
    Table(
        [
            "[what is|what's|name|tell me|give me] the opposite of {x}?",
            "[what|which] word is the opposite of {x}?",
            "the opposite of {x} is?",
            "[what|which word] means the opposite of {x}?",
            "{x}: what is the opposite?",
        ],
        "The opposite of {x} is {y}.",
        OPPOSITES,
    ),
    Table(
        [
            "[what|which] color is {x}?",
            "[what is|what's|tell me|do you know] the color of {x}?",
            "[what|which] color does {x} have?",
        ],
        "The color of {x} is {y}.",
        COLORS,
    ),
    Table(
        [
            "[what|which] sound does a {x} make?",
            "what does a {x} say?",
            "[what is|tell me|do you know] the sound of a {x}?",
            "how does a {x} sound?",
        ],
        "A {x} says {y}.",
        SOUNDS,
    ),
    Table(
        [
            "[what is|what's|what do you call|tell me the name of|how do you call] a baby {x}?",
            "what is a young {x} called?",
            "[what|which] word is there for a baby {x}?",
            "[what is|tell me] the name for a young {x}?",
        ],
        "A baby {x} is called a {y}.",
        BABIES,
    ),
    Table(
        [
            "how many legs does a {x} have?",
            "[what is|tell me|do you know] the number of legs of a {x}?",
            "a {x} has how many legs?",
        ],
        "A {x} has {y} legs.",
        LEGS,
    ),
    Table(
        [
            "where does a {x} live?",
            "[what is|tell me|do you know] the home of a {x}?",
            "where [do you find|can I find] a {x}?",
            "a {x} lives where?",
        ],
        "A {x} lives in {y}.",
        HOMES,
    ),
    Table(
        [
            "what does a {x} [eat|like to eat]?",
            "[what is|tell me|do you know] the food of a {x}?",
            "what [can|should] I feed a {x}?",
        ],
        "A {x} eats {y}.",
        FOOD_OF,
    ),
    Table(
        ["where does a {x} work?", "[what is|tell me|do you know] the place where a {x} works?", "a {x} works where?"],
        "A {x} works in {y}.",
        JOB_PLACES,
    ),
    Table(
        [
            "how many {x}?",
            "[tell me|do you know|can you tell me] how many {x}?",
            "[what is the number:|say] how many {x}?",
        ],
        "{y}",
        AMOUNTS,
    ),
    Table(
        [
            "what is a {x} [good |used |]for?",
            "what [do|can] you do with a {x}?",
            "why do people use a {x}?",
            "[tell me|do you know] what a {x} is for?",
        ],
        "You use a {x} to {y}.",
        USES,
    ),
    Table(
        ["what [kind of thing|sort of thing] is {x}?", "what kind is {x}?", "[in|to] which group does {x} belong?"],
        "It is {y}.",
        KINDS,
    ),
    Table(
        [
            "[what|which] day comes after {x}?",
            "[what|which] day follows {x}?",
            "[what is|tell me] the day after {x}?",
            "if today is {x}, what day is tomorrow?",
        ],
        "The day after {x} is {y}.",
        shifted(DAYS, 1),
    ),
    Table(
        [
            "[what|which] day comes before {x}?",
            "[what is|tell me] the day before {x}?",
            "if today is {x}, what day was yesterday?",
        ],
        "The day before {x} is {y}.",
        shifted(DAYS, -1),
    ),
    Table(
        [
            "[what|which] month comes after {x}?",
            "[what|which] month follows {x}?",
            "[what is|tell me] the month after {x}?",
            "if it is {x}, what is the next month?",
        ],
        "The month after {x} is {y}.",
        shifted(MONTHS, 1),
    ),
    Table(
        [
            "[what|which] month comes before {x}?",
            "[what is|tell me] the month before {x}?",
            "if it is {x}, what was the last month?",
        ],
        "The month before {x} is {y}.",
        shifted(MONTHS, -1),
    ),
    Table(
        [
            "[what is|what's|name|tell me] the {x} month [of the year|]?",
            "[what|which] month is the {x} [of the year|one]?",
        ],
        "The {x} month is {y}.",
        dict(zip(ORDINALS, MONTHS)),
    ),
    Table(
        ["[what is|what's|name|tell me] the {x} day of the week?", "[what|which] day is the {x} [of the week|one]?"],
        "The {x} day is {y}.",
        dict(zip(ORDINALS, DAYS)),
    ),
]
