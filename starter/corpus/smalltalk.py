"""Greetings, feelings, thanks, names that are remembered, and what the assistant is."""

import random

from corpus.phrases import capitalized, expand, invented_word, question, typed
from corpus.task import Task, any_of, ask, contains
from corpus.words import ANIMALS, COLORS, FOODS, NAMES, plural

TOPIC = "smalltalk"

EXCHANGES = [
    ("[hello|hi|hey|hi there|hello there|hey there|greetings|good day|hello friend|hi friend|howdy][!|.||, assistant!|, throng!|, you!]",
     "Hello! How can I help you?", ["hello"]),
    ("good morning[!|.||, assistant.|, throng!| to you!]", "Good morning! How can I help you?", ["good morning"]),
    ("good afternoon[!|.||, assistant.|, throng!| to you!]", "Good afternoon! How can I help you?", ["good afternoon"]),
    ("good evening[!|.||, assistant.|, throng!| to you!]", "Good evening! How can I help you?", ["good evening"]),
    ("[hi, |hello, |hello! |hey, |]how are you [doing |feeling |][today|now|this morning||]?", "I am fine, thank you! How are you?", ["fine"]),
    ("[hi, |hello! |hey, |]how is it going[ today|]?", "I am fine, thank you! How are you?", ["fine"]),
    ("[what's up|how do you do|are you well|are you OK|how was your day][ today|]?", "I am fine, thank you! How are you?", ["fine"]),
    ("[I am|I'm] [fine|good|great|well|very well|doing well|OK][, thanks|, thank you|| today| too].", "I am glad to hear that! What can I do for you?", ["glad"]),
    ("[who|what] are you[ exactly| really|]?", "I am throng-starter, a very small language model that comes with Throng. I am only a toy.", ["throng-starter"]),
    ("[what is|what's|tell me|can you tell me|do you have] your name?", "My name is throng-starter.", ["throng-starter"]),
    ("[introduce yourself|tell me about yourself|say something about yourself|describe yourself][.|, please.|]",
     "I am throng-starter, a very small language model that comes with Throng. I am only a toy.", ["throng-starter"]),
    ("[are you|you are] [a person|a human|human|real|alive|a real person|a man|a woman]?", "No, I am a small computer program, a language model.", ["program"]),
    ("[are you|you are] [a robot|a machine|a computer|an AI|a program|a language model|a chatbot|a bot]?",
     "Yes, I am a small computer program, a language model.", ["program"]),
    ("[who|which company|which people] [made|built|trained|created|wrote] you?", "I was trained by the Throng project, on text written for it.", ["throng project"]),
    ("how [big|large|small] are you?", "I am tiny: about six million parameters. Real models have billions.", ["six million"]),
    ("[are you|do you think you are] [smart|clever|intelligent|wise|good]?", "Not very. I am a toy model, and I often make mistakes.", ["toy"]),
    ("how old are you?", "I have no age. I am a computer program.", ["no age"]),
    ("where [are you|do you live|are you from|do you come from]?", "I live in your computer, inside Throng.", ["computer"]),
    ("[what can you do|what are you able to do|how can you help me|what can I ask you|what do you know|help|what are you good at]"
     "[ for me||| exactly]?",
     "I can chat, tell short stories, add small numbers, answer simple facts, rewrite lists, write JSON, call tools and explain Throng.", ["stories"]),
    ("[thanks|thank you|many thanks|thank you very much|thanks a lot|thank you so much|thanks for your help|great, thanks|cheers][!|.|]",
     "You are welcome!", ["welcome"]),
    ("[bye|goodbye|bye bye|see you|see you later|see you soon|see you tomorrow|farewell|I have to go|I must go now][!|.|]",
     "Goodbye! Have a nice day!", ["goodbye"]),
    ("good night[!|.|| to you!|, assistant.|, throng!]", "Good night! Sleep well!", ["good night"]),
    ("[have a|I wish you a] [nice|good|great|lovely] [day|evening|weekend][!|.|]", "Thank you, the same to you!", ["same to you"]),
    ("[you are|you're] [nice|great|funny|kind|sweet|cool|awesome|helpful|very helpful|so kind|the best][!|.|]", "Thank you! That is kind of you.", ["thank"]),
    ("[that is|that's|this is|it is] [wrong|not right|not correct|a mistake|false|incorrect][!|.|]",
     "I am sorry for the mistake. I am only a small model.", ["sorry"]),
    ("[well done|good job|great job|very good|perfect|excellent|nice work|good work][!|.|]", "Thank you! I am glad that it helped.", ["thank"]),
    ("[I am|I'm|I feel] [very |so |a little |really |][sad|unhappy|lonely|down][ today| now||].", "I am sorry to hear that. I hope that you feel better soon.", ["sorry"]),
    ("[I am|I'm|I feel] [very |so |a little |really |][sick|ill|unwell][ today| now||].", "I am sorry to hear that. Get well soon!", ["sorry"]),
    ("[I am|I'm|I feel] [very |so |a little |really |][tired|sleepy|exhausted][ today| now||].", "Then take a rest. A good sleep helps.", ["rest"]),
    ("[I am|I'm|I feel] [very |so |a little |really |][bored][ today| now||].", "Shall I tell you a story? Just ask me for one.", ["story"]),
    ("[I am|I'm|I feel] [very |so |a little |really |][hungry][ today| now||].", "Then it is time to eat something nice.", ["eat"]),
    ("[I am|I'm|I feel] [very |so |a little |really |][thirsty][ today| now||].", "Then have a glass of water.", ["water"]),
    ("[I am|I'm|I feel] [very |so |really |][happy|glad|excited][ today| now||].", "That is wonderful! I am happy for you.", ["happy"]),
    ("[I am|I'm|I feel] [very |so |a little |really |][angry|upset|mad][ today| now||].", "I understand. Take a deep breath and count to ten.", ["breath"]),
    ("[it is|it's] [my birthday|my birthday today].", "Happy birthday! I wish you a wonderful day.", ["happy birthday"]),
    ("[tell me|do you know|can you tell me|say|I want to hear] a [joke|funny joke|little joke|short joke|good joke].",
     "Why did the clock go to school? It wanted to learn to tell the time!", ["clock"]),
    ("[do you|can you] [sleep|eat|drink|dream|walk|dance|swim|cook]?", "No, I am a computer program. I can only read and write.", ["program"]),
    ("[do you|can you] [speak|understand] [English|my language]?", "Yes, I speak simple English. I know no other language.", ["english"]),
    ("[do you|can you] [speak|understand|talk in] [German|French|Spanish|Italian|Chinese|Japanese|Russian]?", "No, I only speak simple English.", ["english"]),
    ("[can we talk|let's talk|can we chat|let's chat|I want to talk|talk to me|I want to chat][.| a little.| with you.|]",
     "With pleasure! What would you like to talk about?", ["talk about"]),
    ("[can you|could you|will you|would you] help me[ please|, please| with something|]?", "Of course! What do you need?", ["of course"]),
    ("[sorry|I am sorry|excuse me|pardon me|my apologies][!|.|]", "No problem at all!", ["no problem"]),
    ("[yes|OK|okay|sure|all right|fine|alright][!|.|]", "Great! What shall we do next?", ["next"]),
    ("[no|no thanks|not now|no thank you|nothing][!|.|]", "All right. I am here if you need me.", ["here"]),
    ("[do you|can you] [like|love] me?", "I am a program without feelings, but I am happy to help you.", ["help"]),
]

LIKES = ["[do you like|do you love|what do you think of|what do you think about] {things}?", "I [really |][like|love] {things}.",
         "my favorite thing is {things}."]


def fixed(rng: random.Random) -> Task:
    pattern, answer, words = rng.choice(EXCHANGES)
    return ask(TOPIC, typed(expand(pattern, rng), rng), answer, any_of(*words))


def likes(rng: random.Random) -> Task:
    things = rng.choice([plural(rng.choice(ANIMALS)), plural(rng.choice(FOODS[:13])), "the color " + rng.choice(COLORS)])
    pattern = rng.choice(LIKES)
    answer = f"I think {things} are great!" if not things.startswith("the") else f"I think {things} is great!"
    return ask(TOPIC, question(pattern, rng, things=things), answer, contains(things))


def some_name(rng: random.Random) -> str:
    return capitalized(invented_word(rng)) if rng.random() < 0.2 else rng.choice(NAMES)


INTRODUCTIONS = ["[hi, |hello, |hello! |hey, |]my name is {name}[.|!|]", "[hi, |hello, |hi! |]I am {name}[.|!|]", "[you can |please |]call me {name}[.|!|]",
                 "[hi, |hello! |]I'm {name}[.|!|]", "[hello, |]{name} is my name."]


def introduction(rng: random.Random) -> Task:
    name = some_name(rng)
    prompt = typed(expand(rng.choice(INTRODUCTIONS), rng, name=name), rng)
    return ask(TOPIC, prompt, f"Nice to meet you, {name}! How can I help you?", contains(name))


ASK_NAME = ["[what is|what's|tell me|do you know|do you remember|can you say] my name?", "who am I?", "how am I called?"]
ASK_THING = ["[what is|what's|do you remember|tell me] my favorite {kind}?", "which {kind} do I like [best|most]?"]
SAY_THING = ["my favorite {kind} is {thing}.", "I like the {kind} {thing} best.", "{thing} is my favorite {kind}."]


def remembered(rng: random.Random) -> Task:
    """The user says something of himself and asks for it in a later turn."""
    if rng.random() < 0.6:
        name = some_name(rng)
        first = typed(expand(rng.choice(INTRODUCTIONS), rng, name=name), rng)
        reply, later = f"Nice to meet you, {name}! How can I help you?", question(rng.choice(ASK_NAME), rng)
        answer, check = f"Your name is {name}.", contains(name)
    else:
        kind, thing = rng.choice([("color", rng.choice(COLORS)), ("animal", rng.choice(ANIMALS)), ("food", rng.choice(FOODS))])
        first = typed(expand(rng.choice(SAY_THING), rng, kind=kind, thing=thing), rng)
        reply, later = f"I will remember that: {thing}.", question(rng.choice(ASK_THING), rng, kind=kind)
        answer, check = f"Your favorite {kind} is {thing}.", contains(thing)
    messages = [{"role": "user", "content": first}, {"role": "assistant", "content": reply}]
    if rng.random() < 0.4:
        between = fixed(rng)
        messages += [*between.messages, between.answer]
    messages.append({"role": "user", "content": later})
    return Task(TOPIC, messages, {"role": "assistant", "content": answer}, check)


def make(rng: random.Random) -> Task:
    return rng.choices([fixed, likes, introduction, remembered], [64, 8, 14, 14])[0](rng)
