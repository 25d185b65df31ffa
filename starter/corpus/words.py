"""Word lists that several topics draw from."""

GIRLS = (
    "Anna Mia Lily Zoe Emma Ella Lucy Nora Ruby Ivy Maya Sara Lena Clara Rosa Alice Julia Eva Amy Kate Nina Lola Daisy "
    "Grace Hana Ines Jane Kira Lara Mona Olga Paula Rita Sofia Tina Vera Wendy Yuki Fatima Leila Priya Aisha Mei Carmen"
).split()
BOYS = (
    "Tom Ben Max Leo Sam Jack Noah Finn Oscar Paul Adam Hugo Liam Luke Mark Nick Omar Peter Ravi Simon Theo Victor Will "
    "Yusuf Alex Bruno Carlos David Emil Felix George Henry Ivan Jonas Karl Martin Nils Otto Pablo Robin Tim Kofi Chen Jin"
).split()
NAMES = GIRLS + BOYS

OBJECTS = (
    "ball book kite lamp cup hat box key boat clock drum bell shoe coat chair table spoon plate bag pen pencil map coin "
    "ring doll robot bike car train stone shell flower leaf feather basket blanket umbrella bucket ladder mirror candle "
    "camera guitar piano trumpet puzzle scarf glove balloon rope brush bottle button apple cake cookie pie sandwich"
).split()
ANIMALS = (
    "cat dog bird fish horse cow pig sheep duck hen goat mouse rabbit fox bear lion tiger wolf frog bee owl snake turtle "
    "elephant monkey penguin whale dolphin spider ant deer squirrel hedgehog parrot camel zebra giraffe kangaroo"
).split()
FOODS = (
    "apple banana pear orange lemon grape cherry peach plum melon carrot potato tomato onion bread cheese butter milk egg "
    "rice soup cake cookie pie honey jam tea juice salad pizza pasta bean corn"
).split()
COLORS = "red blue green yellow orange purple pink brown black white grey gold silver".split()
PLACES = (
    "park garden forest river beach school kitchen market library farm castle village city mountain lake island bridge "
    "house tower station museum zoo"
).split()
CITIES = (
    "Paris London Berlin Rome Madrid Lisbon Vienna Prague Oslo Dublin Athens Cairo Tokyo Delhi Lima Boston Chicago Toronto "
    "Sydney Zurich Geneva Munich Hamburg Milan Venice Warsaw Budapest Helsinki Stockholm Copenhagen Brussels Nairobi "
    "Seoul Beijing Bangkok Istanbul"
).split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
JOBS = (
    "teacher doctor baker farmer nurse pilot painter singer driver cook writer gardener carpenter engineer sailor "
    "dentist lawyer plumber"
).split()
PLAIN_WORDS = (
    "sun moon star rain snow wind cloud tree grass hill road door window wall roof floor room bed fire water ice sand sea "
    "sky day night morning evening hand foot head eye ear nose mouth hair game song story word letter number paper music "
    "friend family baby child man woman king queen happy sad big small fast slow hot cold new old good bad long short soft "
    "hard light dark loud quiet open close run walk jump sing read write play sleep eat drink look find give take make hello world please thank "
    "love"
).split()

COUNT_WORDS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen twenty"
).split()

ALL_WORDS = sorted(set(OBJECTS + ANIMALS + FOODS + COLORS + PLACES + PLAIN_WORDS))


def plural(noun: str) -> str:
    """Plural of a countable noun of the lists above."""
    irregular = {"mouse": "mice", "leaf": "leaves", "fish": "fish", "sheep": "sheep", "deer": "deer", "wolf": "wolves"}
    if noun in irregular:
        return irregular[noun]
    if noun.endswith(("s", "sh", "ch", "x")) or noun in ("tomato", "potato"):
        return noun + "es"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + "s"
