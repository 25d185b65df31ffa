"""The tools that the training text describes, each under several names, and what people say to have them called."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Tool:
    """`parameters` maps the role of a parameter to the names it may have and to its JSON type."""

    names: list[str]
    description: str
    parameters: dict[str, tuple[list[str], str]]
    requests: list[str]
    result: dict[str, str]
    answer: str
    """Pattern over the roles of the parameters and the keys of the result."""


CITY = (["city", "location", "place"], "string")
TEXT = (["text", "message", "content"], "string")

TOOLS = [
    Tool(
        ["get_weather", "weather", "check_weather"],
        "Get the weather in a city",
        {"city": CITY},
        [
            "[what is|how is|what's|tell me] the weather [like |][in|for] {city}?",
            "is it [raining|sunny|cold|warm] in {city}?",
            "weather in {city}",
            "[check|show me] the weather in {city}.",
            "do I need an umbrella in {city}?",
        ],
        {"temperature": "temperature", "condition": "condition"},
        "In {city} it is {condition} and {temperature} degrees.",
    ),
    Tool(
        ["get_time", "current_time", "clock"],
        "Get the current time in a city",
        {"city": CITY},
        [
            "what time is it in {city}?",
            "[what is|tell me|show me] the time in {city}?",
            "how late is it in {city}?",
            "time in {city}",
        ],
        {"time": "time"},
        "It is {time} in {city}.",
    ),
    Tool(
        ["add", "add_numbers", "sum"],
        "Add two numbers",
        {"a": (["a", "x", "first"], "integer"), "b": (["b", "y", "second"], "integer")},
        [
            "[use the tool to |]add {a} and {b}.",
            "what is {a} plus {b}?",
            "[what is|calculate] {a} + {b}?",
            "the sum of {a} and {b}, please.",
        ],
        {"result": "number"},
        "The result is {result}.",
    ),
    Tool(
        ["multiply", "multiply_numbers", "product"],
        "Multiply two numbers",
        {"a": (["a", "x", "first"], "integer"), "b": (["b", "y", "second"], "integer")},
        [
            "[use the tool to |]multiply {a} by {b}.",
            "what is {a} times {b}?",
            "[what is|calculate] {a} x {b}?",
            "the product of {a} and {b}, please.",
        ],
        {"result": "number"},
        "The result is {result}.",
    ),
    Tool(
        ["send_message", "send_text", "message"],
        "Send a message to a person",
        {"name": (["to", "recipient", "person"], "string"), "text": TEXT},
        [
            "[send|write] {name} a message: {text}",
            "tell {name}: {text}",
            'send "{text}" to {name}.',
            "message {name} that {text}",
        ],
        {"status": "sent"},
        "I sent your message to {name}.",
    ),
    Tool(
        ["set_timer", "start_timer", "timer"],
        "Set a timer",
        {"minutes": (["minutes", "duration"], "integer")},
        [
            "set a timer for {minutes} minutes.",
            "[wake|remind|call] me in {minutes} minutes.",
            "start a timer of {minutes} minutes.",
            "timer for {minutes} minutes",
        ],
        {"status": "started"},
        "The timer is set for {minutes} minutes.",
    ),
    Tool(
        ["set_alarm", "create_alarm", "alarm"],
        "Set an alarm",
        {"time": (["time", "at"], "string")},
        [
            "set an alarm for {time}.",
            "wake me [up |]at {time}.",
            "[I need|make] an alarm at {time}.",
            "alarm at {time}",
        ],
        {"status": "set"},
        "The alarm is set for {time}.",
    ),
    Tool(
        ["switch_light", "set_light", "light"],
        "Switch the light of a room on or off",
        {"room": (["room", "where"], "string"), "state": (["state", "value"], "string")},
        [
            "[turn|switch] {state} the light in the {room}.",
            "[turn|switch] the light in the {room} {state}.",
            "light {state} in the {room}, please.",
            "{room} light {state}.",
        ],
        {"status": "done"},
        "The light in the {room} is {state}.",
    ),
    Tool(
        ["get_price", "price", "check_price"],
        "Get the price of an item",
        {"item": (["item", "product", "thing"], "string")},
        [
            "[how much|what] does a {item} cost?",
            "[what is|tell me|check] the price of a {item}?",
            "how much is a {item}?",
            "price of a {item}",
        ],
        {"price": "price"},
        "A {item} costs {price} dollars.",
    ),
    Tool(
        ["add_to_list", "add_item", "shopping_list"],
        "Add an item to the shopping list",
        {"item": (["item", "product", "thing"], "string"), "quantity": (["quantity", "amount", "count"], "integer")},
        [
            "[add|put] {quantity} {item} [to|on] [the|my] shopping list.",
            "[I need|we need] {quantity} {item} on the list.",
            "shopping list: {quantity} {item}",
        ],
        {"status": "added"},
        "I added {quantity} {item} to the list.",
    ),
    Tool(
        ["translate", "translate_word", "dictionary"],
        "Translate a word into another language",
        {"word": (["word", "text"], "string"), "language": (["language", "target", "to"], "string")},
        [
            "translate {word} [to|into] {language}.",
            "how do you say {word} in {language}?",
            "what is {word} in {language}?",
            "{word} in {language}, please.",
        ],
        {"translation": "invented"},
        "In {language}, {word} is {translation}.",
    ),
    Tool(
        ["play_music", "play_song", "music"],
        "Play a song",
        {"song": (["song", "title", "name"], "string")},
        [
            "play [the song |]{song}.",
            "[I want|I would like] to hear {song}.",
            "[can you|please] play {song}?",
            "put on {song}.",
        ],
        {"status": "playing"},
        "Now playing {song}.",
    ),
    Tool(
        ["find_person", "get_phone", "phone_book"],
        "Find the phone number of a person",
        {"name": (["name", "person", "who"], "string")},
        [
            "[what is|tell me|find] the phone number of {name}?",
            "how can I call {name}?",
            "phone number of {name}",
            "I need the number of {name}.",
        ],
        {"phone": "phone"},
        "The phone number of {name} is {phone}.",
    ),
    Tool(
        ["create_event", "add_event", "calendar"],
        "Add an event to the calendar",
        {"event": (["title", "event", "what"], "string"), "day": (["day", "date", "when"], "string")},
        [
            "[add|put] a {event} on {day} [to|in] my calendar.",
            "[plan|schedule] a {event} on {day}.",
            "I have a {event} on {day}. Put it in the calendar.",
        ],
        {"status": "saved"},
        "The {event} on {day} is in your calendar.",
    ),
    Tool(
        ["search", "search_web", "find"],
        "Search the web",
        {"query": (["query", "q", "text"], "string")},
        ["search [the web |]for {query}.", "[look up|find] {query} [on the web|online].", "search: {query}"],
        {"found": "count"},
        "I found {found} pages about {query}.",
    ),
    Tool(
        ["count_stock", "get_stock", "stock"],
        "Get how many pieces of an item are in stock",
        {"item": (["item", "product", "thing"], "string")},
        ["how many {item} [are|do we have] in stock?", "[is there|check] stock of {item}?", "stock of {item}"],
        {"pieces": "count"},
        "There are {pieces} {item} in stock.",
    ),
]
