# SPDX-License-Identifier: Apache-2.0
"""Realistic tools as data: what people name them, what they take and how they are asked for.

One family is `(names, descriptions, parameters, requests)`. A parameter is
`key: (possible names, kind or list of enum values, required, descriptions)`; a request uses the
keys it fills, in braces. Keys that a request leaves out are optional and stay out of the call.
Families in HELD_OUT never appear in training; evaluation asks only for those and for invented ones.
"""

from __future__ import annotations

UNIT = (["unit", "units"], ["celsius", "fahrenheit"], False, ["", "Temperature unit"])
CITY = (["city", "location", "place", "town", "city_name"], "city", True,
        ["", "The city", "City name", "The city name, e.g. Paris", "The city and state, e.g. San Francisco, CA", "Name of the place"])

FAMILIES = {
    "weather": (
        ["get_weather", "get_weather", "get_current_weather", "weather", "current_weather", "weather_lookup",
         "fetch_weather", "getWeather"],
        ["Get the current weather in a city", "Get the weather", "Get the current weather for a location",
         "Current weather for a place", "Returns the weather of a city", "Get weather", ""],
        {"city": CITY, "unit": UNIT},
        ["What is the weather in {city}?", "What is the weather in {city}?", "What's the weather in {city}?",
         "What's the weather like in {city}?", "How is the weather in {city}?", "weather in {city}",
         "Weather in {city}?", "Tell me the weather in {city}.", "How is the weather in {city} today?",
         "What is the weather like in {city} right now?", "What is the weather in {city} in {unit}?",
         "Is it raining in {city}?", "How warm is it in {city}?", "Is it cold in {city} today?",
         "What is the temperature in {city} in {unit}?", "How hot is it in {city} in {unit}?",
         "I am going to {city}. What is the weather there?", "Do I need an umbrella in {city}?",
         "Please check the weather for {city}.", "Give me the weather for {city}, in {unit} please.",
         "Can you tell me the current weather in {city}?", "Hi! What's the weather in {city} now?"]),
    "forecast": (
        ["get_forecast", "weather_forecast", "forecast"],
        ["Get the weather forecast for a city", "Forecast for several days", "Weather forecast"],
        {"city": CITY, "days": (["days", "n_days", "num_days"], "int", True, ["", "Number of days"])},
        ["What is the forecast for {city} for the next {days} days?", "Forecast for {city}, {days} days.",
         "Give me the {days} day forecast for {city}.", "How will the weather be in {city} in the next {days} days?"]),
    "time": (
        ["get_time", "current_time", "get_current_time", "time_in_city", "world_clock"],
        ["Get the current time in a city", "Get the local time", "Current time in a place", ""],
        {"city": (["city", "location", "place", "timezone"], "city", True, ["", "The city"])},
        ["What time is it in {city}?", "What is the time in {city}?", "Tell me the current time in {city}.",
         "time in {city}?", "What's the local time in {city} right now?", "How late is it in {city}?"]),
    "email": (
        ["send_email", "email", "send_mail", "mail_send"],
        ["Send an email", "Send an email to somebody", "Sends a mail", ""],
        {"to": (["to", "recipient", "address", "email"], "email", True, ["", "Email address of the recipient"]),
         "subject": (["subject", "title"], "phrase", False, ["", "Subject line"]),
         "body": (["body", "message", "text", "content"], "text", True, ["", "Text of the mail"])},
        ["Send an email to {to} saying {body}", "Email {to}: {body}", "Mail {to} with the text {body}",
         "Send an email to {to} with subject {subject} and body {body}",
         "Write an email to {to} with the subject {subject} and the text {body}",
         "Send a mail to {to} that says \"{body}\""]),
    "message": (
        ["send_message", "send_sms", "text_message", "message_contact"],
        ["Send a message to a contact", "Send a text message", "Send an SMS", ""],
        {"to": (["to", "contact", "recipient", "person", "name"], "first", True, ["", "Who gets the message"]),
         "text": (["text", "message", "body"], "text", True, ["", "The message"])},
        ["Send a message to {to}: {text}", "Text {to} that {text}", "Tell {to} {text}",
         "Send {to} the message {text}", "Message {to} saying {text}", "Write to {to}: \"{text}\""]),
    "web_search": (
        ["web_search", "search_web", "search", "google", "search_internet"],
        ["Search the web", "Search the internet for a query", "Web search", ""],
        {"query": (["query", "q", "search_query", "text"], "phrase", True, ["", "What to search for"]),
         "n": (["limit", "max_results", "count", "n"], "int", False, ["", "Number of results"])},
        ["Search the web for {query}", "Search for {query}", "Look up {query} on the web", "Google {query}",
         "Find {n} results for {query}", "Search the internet for {query} and give me {n} results",
         "What does the web say about {query}?"]),
    "translate": (
        ["translate", "translate_text", "translator"],
        ["Translate text", "Translate a text into another language", "Translates to a target language", ""],
        {"text": (["text", "phrase", "input", "sentence"], "phrase", True, ["", "Text to translate"]),
         "lang": (["target_language", "language", "to", "target", "target_lang"], "language", True, ["", "Target language"])},
        ["Translate {text} to {lang}", "Translate \"{text}\" into {lang}.", "How do you say {text} in {lang}?",
         "What is \"{text}\" in {lang}?", "Please translate the following to {lang}: {text}"]),
    "currency": (
        ["convert_currency", "currency_convert", "exchange_money", "currency_converter"],
        ["Convert an amount of money", "Convert between currencies", "Currency conversion"],
        {"amount": (["amount", "value", "sum"], "number", True, ["", "Amount of money"]),
         "src": (["from", "from_currency", "source", "base"], "currency", True, ["", "Currency to convert from"]),
         "dst": (["to", "to_currency", "target"], "currency", True, ["", "Currency to convert to"])},
        ["Convert {amount} {src} to {dst}", "How much is {amount} {src} in {dst}?", "What is {amount} {src} in {dst}?",
         "{amount} {src} to {dst} please", "Exchange {amount} {src} into {dst}."]),
    "reminder": (
        ["set_reminder", "create_reminder", "add_reminder", "remind_me"],
        ["Set a reminder", "Create a reminder at a time", "Remind the user of something"],
        {"text": (["text", "message", "task", "what"], "phrase", True, ["", "What to remember"]),
         "time": (["time", "at", "when"], "clock", True, ["", "When to remind"])},
        ["Remind me of {text} at {time}", "Set a reminder for {text} at {time}.", "At {time} remind me to {text}",
         "Remind me at {time}: {text}", "Create a reminder: {text}, {time}"]),
    "timer": (
        ["set_timer", "start_timer", "timer"], ["Set a timer", "Start a countdown timer", ""],
        {"n": (["minutes", "duration", "duration_minutes"], "int", True, ["", "Minutes"])},
        ["Set a timer for {n} minutes.", "Start a timer of {n} minutes", "{n} minute timer please",
         "Wake me in {n} minutes", "timer {n} minutes"]),
    "alarm": (
        ["set_alarm", "create_alarm", "alarm"], ["Set an alarm", "Set an alarm clock", ""],
        {"time": (["time", "at", "clock"], "clock", True, ["", "Time of the alarm"]),
         "day": (["day", "date"], "day", False, ["", "Day of the alarm"])},
        ["Set an alarm for {time}.", "Wake me at {time}", "Wake me up {day} at {time}", "Set the alarm to {time} {day}."]),
    "calculator": (
        ["calculate", "calculator", "evaluate", "compute"],
        ["Evaluate an arithmetic expression", "Calculate an expression", "A calculator"],
        {"e": (["expression", "expr", "formula", "input"], "expr", True, ["", "The expression"])},
        ["Calculate {e}", "What is {e}?", "Compute {e}", "Work out {e} for me.", "How much is {e}?"]),
    "stock_price": (
        ["get_stock_price", "stock_price", "get_quote", "stock_quote"],
        ["Get the price of a stock", "Current stock price of a company", "Get a stock quote"],
        {"s": (["symbol", "ticker", "company", "stock"], "pseudo_or_ticker", True, ["", "Ticker symbol"])},
        ["What is the stock price of {s}?", "How much is {s} stock?", "Get me a quote for {s}.",
         "What does {s} trade at?", "stock price {s}", "How is {s} stock doing today?"]),
    "music": (
        ["play_music", "play_song", "music_play", "play"], ["Play music", "Play a song", "Plays a track", ""],
        {"song": (["song", "title", "track", "query"], "title", True, ["", "Title of the song"]),
         "artist": (["artist", "by", "band"], "name", False, ["", "Name of the artist"])},
        ["Play {song}", "Play the song {song}", "Play {song} by {artist}", "I want to hear {song} by {artist}.",
         "Put on {song}"]),
    "lights": (
        ["set_light", "control_light", "switch_light", "light_control", "turn_light"],
        ["Turn a light on or off", "Control the lights of a room", "Switch lights"],
        {"room": (["room", "location", "where"], "room", True, ["", "The room"]),
         "state": (["state", "action", "mode"], ["on", "off"], True, ["", "New state"])},
        ["Turn {state} the light in the {room}.", "Turn the {room} light {state}", "Switch {state} the {room} lights.",
         "Lights {state} in the {room} please", "Turn {state} the lights in the {room}"]),
    "thermostat": (
        ["set_temperature", "set_thermostat", "thermostat"], ["Set the temperature of a room", "Set the thermostat"],
        {"t": (["temperature", "degrees", "value"], "int", True, ["", "Degrees"]),
         "room": (["room", "zone", "location"], "room", False, ["", "Which room"])},
        ["Set the temperature to {t} degrees.", "Set the thermostat to {t}", "Heat the {room} to {t} degrees",
         "Make it {t} degrees in the {room}", "Set the {room} to {t} degrees."]),
    "flight": (
        ["book_flight", "search_flights", "find_flight", "flight_search"],
        ["Book a flight", "Search for flights between two cities", "Find flights"],
        {"a": (["from", "origin", "departure", "from_city"], "city", True, ["", "City of departure"]),
         "b": (["to", "destination", "arrival", "to_city"], "city", True, ["", "City of arrival"]),
         "d": (["date", "day", "departure_date"], "date", False, ["", "Date of departure"])},
        ["Find a flight from {a} to {b}.", "Book a flight from {a} to {b} on {d}", "I want to fly from {a} to {b}.",
         "Flights from {a} to {b} on {d}?", "I need to get from {a} to {b} by plane on {d}.", "Fly me to {b} from {a}"]),
    "order_status": (
        ["get_order_status", "order_status", "track_order", "check_order"],
        ["Get the status of an order", "Track an order by its id", "Check an order"],
        {"id": (["order_id", "id", "order", "order_number"], "code", True, ["", "Id of the order"])},
        ["Where is my order {id}?", "What is the status of order {id}?", "Track order {id}", "Check on order {id} please.",
         "Has order {id} been shipped?"]),
    "distance": (
        ["get_distance", "distance", "route_distance", "compute_distance"],
        ["Distance between two cities", "Compute the distance between two places"],
        {"a": (["from", "start", "origin", "city_a"], "city", True, ["", "Start"]),
         "b": (["to", "end", "destination", "city_b"], "city", True, ["", "End"])},
        ["How far is it from {a} to {b}?", "What is the distance between {a} and {b}?", "Distance from {a} to {b}",
         "How many kilometers are there from {a} to {b}?"]),
    "event": (
        ["create_event", "add_event", "calendar_add", "schedule_event"],
        ["Create a calendar event", "Add an event to the calendar", "Schedule an event"],
        {"t": (["title", "name", "event", "summary"], "phrase", True, ["", "Title of the event"]),
         "d": (["date", "day", "when"], "date", True, ["", "Date of the event"]),
         "c": (["time", "start", "start_time"], "clock", False, ["", "Start time"])},
        ["Add {t} to my calendar on {d}.", "Create an event {t} on {d} at {c}", "Schedule {t} for {d}",
         "Put {t} in my calendar for {d} at {c}.", "Plan \"{t}\" on {d}"]),
    "meeting": (
        ["schedule_meeting", "create_meeting", "book_meeting"], ["Schedule a meeting with somebody", "Book a meeting"],
        {"w": (["with", "attendee", "person", "participant"], "first", True, ["", "Who takes part"]),
         "d": (["day", "date"], "day", True, ["", "Which day"]),
         "c": (["time", "start_time", "at"], "clock", False, ["", "Start time"])},
        ["Schedule a meeting with {w} {d}.", "Set up a meeting with {w} on {d} at {c}.", "I have to meet {w} {d} at {c}",
         "Book a meeting with {w} for {d}"]),
    "note": (
        ["create_note", "add_note", "take_note", "save_note"], ["Create a note", "Save a note", ""],
        {"text": (["text", "content", "note", "body"], "text", True, ["", "Text of the note"])},
        ["Take a note: {text}", "Note that {text}", "Make a note saying {text}", "Write down {text}",
         "Save this note: {text}"]),
    "todo": (
        ["add_todo", "add_task", "create_task", "todo_add"], ["Add a task to the to-do list", "Create a task"],
        {"t": (["task", "title", "item", "text"], "phrase", True, ["", "What to do"]),
         "p": (["priority", "importance"], ["low", "medium", "high"], False, ["", "Priority"])},
        ["Add {t} to my to-do list.", "Add the task {t}", "New task: {t}", "Add a task {t} with {p} priority",
         "Put {t} on my list with priority {p}"]),
    "define": (
        ["define_word", "dictionary", "lookup_word", "get_definition"], ["Look up a word in the dictionary",
         "Define a word", "Get the definition of a word"],
        {"w": (["word", "term", "query"], "word", True, ["", "The word"])},
        ["What does {w} mean?", "Define {w}", "Look up the word {w}.", "What is the meaning of \"{w}\"?",
         "definition of {w}"]),
    "random_number": (
        ["random_number", "get_random_number", "random_int"], ["Get a random number", "Random number in a range"],
        {"a": (["min", "low", "from"], "int", True, ["", "Lower limit"]),
         "b": (["max", "high", "to"], "int", True, ["", "Upper limit"])},
        ["Give me a random number between {a} and {b}.", "Random number from {a} to {b}", "Pick a number between {a} and {b}"]),
    "file_read": (
        ["read_file", "open_file", "cat_file", "get_file"], ["Read a file", "Return the content of a file", ""],
        {"p": (["path", "file", "filename", "file_path"], "path", True, ["", "Path of the file"])},
        ["Read the file {p}", "Show me {p}", "What is in {p}?", "Open {p} please", "Print the content of {p}"]),
    "file_write": (
        ["write_file", "save_file", "create_file"], ["Write text to a file", "Save a file"],
        {"p": (["path", "file", "filename"], "path", True, ["", "Path of the file"]),
         "t": (["content", "text", "data"], "text", True, ["", "What to write"])},
        ["Write {t} to {p}", "Save \"{t}\" in the file {p}", "Create a file {p} with the content {t}"]),
    "file_delete": (
        ["delete_file", "remove_file", "rm"], ["Delete a file", "Remove a file from disk"],
        {"p": (["path", "file", "filename"], "path", True, ["", "Path of the file"])},
        ["Delete the file {p}", "Remove {p}", "Please delete {p}."]),
    "user": (
        ["get_user", "find_user", "lookup_user", "user_info"], ["Get a user by name", "Look up a user", "Find a user"],
        {"n": (["name", "username", "user", "user_name"], "name", True, ["", "Name of the user"])},
        ["Who is {n}?", "Find the user {n}", "Look up {n} in the user list.", "Show me the user {n}", "Get user {n}"]),
    "database": (
        ["query_database", "run_query", "sql_query"], ["Query a table of the database", "Run a database query"],
        {"t": (["table", "table_name"], "word", True, ["", "Name of the table"]),
         "n": (["limit", "rows", "max_rows"], "int", False, ["", "Number of rows"])},
        ["Get {n} rows from the table {t}.", "Query the table {t} with limit {n}", "Show me the table {t}",
         "Read {n} rows of {t} from the database."]),
    "recipe": (
        ["get_recipe", "find_recipe", "search_recipes"], ["Find a recipe for a dish", "Search for recipes"],
        {"d": (["dish", "food", "name", "meal"], "food", True, ["", "Name of the dish"]),
         "n": (["servings", "people", "persons"], "int", False, ["", "Number of people"])},
        ["How do I cook {d}?", "Find a recipe for {d}", "I want to cook {d} for {n} people.", "Recipe for {d} please",
         "Give me a {d} recipe for {n} people"]),
    "news": (
        ["get_news", "news", "latest_news", "search_news"], ["Get the latest news on a topic", "Search news articles"],
        {"t": (["topic", "subject", "query", "category"], "phrase", True, ["", "Topic"])},
        ["What is the news about {t}?", "Latest news on {t}", "Give me news about {t}.", "Any news on {t}?"]),
    "phone_call": (
        ["call", "call_contact", "make_call", "phone_call"], ["Call a contact", "Make a phone call"],
        {"w": (["contact", "name", "person", "to"], "first", True, ["", "Who to call"])},
        ["Call {w}.", "Phone {w} please", "Make a call to {w}", "Ring {w}", "Give {w} a call"]),
    "volume": (
        ["set_volume", "volume", "change_volume"], ["Set the volume", "Change the volume of the speaker"],
        {"v": (["level", "volume", "percent", "value"], "int", True, ["", "Volume in percent"])},
        ["Set the volume to {v}.", "Volume {v} please", "Turn the volume to {v} percent", "Change the volume to {v}"]),
    "taxi": (
        ["book_taxi", "order_taxi", "call_cab", "request_ride"], ["Order a taxi", "Book a ride to a destination"],
        {"b": (["destination", "to", "address"], "place", True, ["", "Where to go"]),
         "c": (["time", "pickup_time", "at"], "clock", False, ["", "Pick-up time"])},
        ["Order a taxi to {b}.", "I need a taxi to {b} at {c}.", "Get me a ride to {b}", "Book a cab to {b} for {c}"]),
    "population": (
        ["get_population", "population", "country_population"], ["Get the population of a country", "Population of a country"],
        {"c": (["country", "name", "nation"], "country", True, ["", "The country"])},
        ["How many people live in {c}?", "What is the population of {c}?", "Population of {c}?"]),
    "capital": (
        ["get_capital", "capital_city", "country_capital"], ["Get the capital of a country", "Capital of a country"],
        {"c": (["country", "nation", "name"], "country", True, ["", "The country"])},
        ["What is the capital of {c}?", "Tell me the capital of {c}.", "capital of {c}"]),
    "run_code": (
        ["run_python", "execute_code", "python", "run_code"], ["Run Python code", "Execute a piece of code"],
        {"c": (["code", "source", "script"], "expr", True, ["", "The code"])},
        ["Run the code {c}", "Execute {c}", "Run {c} in Python"]),
    "add": (
        ["add", "add_numbers", "sum", "plus"], ["Add two numbers", "Sum of two numbers", "Adds a and b"],
        {"a": (["a", "x", "first"], "number", True, ["", "First number"]),
         "b": (["b", "y", "second"], "number", True, ["", "Second number"])},
        ["What is {a} plus {b}?", "Add {a} and {b}", "What is {a} + {b}?", "{a} + {b}", "Compute {a} + {b}.", "Sum {a} and {b}"]),
    "multiply": (
        ["multiply", "times", "product", "mul"], ["Multiply two numbers", "Product of two numbers"],
        {"a": (["a", "x", "first"], "int", True, ["", "First number"]),
         "b": (["b", "y", "second"], "int", True, ["", "Second number"])},
        ["What is {a} times {b}?", "Multiply {a} by {b}", "What is {a} * {b}?", "Multiply {a} and {b}.", "{a} * {b}"]),
    "home": (
        ["open_door", "lock_door", "door"], ["Open or lock a door of the house", "Control a door"],
        {"w": (["door", "which", "name"], "room", True, ["", "Which door"]),
         "s": (["action", "state"], ["open", "close", "lock", "unlock"], True, ["", "What to do"])},
        ["{s} the {w} door.", "Please {s} the door of the {w}", "Can you {s} the {w} door?"]),
    "kb": (
        ["search_docs", "search_documents", "find_documents", "retrieve"], ["Search the documents", "Search the knowledge base",
         "Retrieve documents about a query"],
        {"q": (["query", "question", "text"], "phrase", True, ["", "What to look for"]),
         "k": (["top_k", "k", "limit"], "int", False, ["", "How many documents"])},
        ["Search the documents for {q}.", "Find documents about {q}", "What do the documents say about {q}?",
         "Find the top {k} documents about {q}."]),
    "room_book": (
        ["book_room", "reserve_room", "room_booking"], ["Book a meeting room", "Reserve a room in the office", ""],
        {"r": (["room", "room_name", "name"], "title", True, ["", "Which room"]),
         "n": (["seats", "people", "persons", "attendees"], "int", True, ["", "How many people"]),
         "c": (["time", "start", "at"], "clock", False, ["", "When it starts"])},
        ["Book the room {r} for {n} people.", "I need the room {r} for {n} people at {c}", "Reserve {r} for {n} at {c}.",
         "Room {r} for {n} people, please"]),
    "rental_car": (
        ["rent_car", "book_car", "reserve_car", "car_rental"], ["Rent a car in a city", "Book a rental car"],
        {"city": CITY, "n": (["days", "n_days", "duration"], "int", True, ["", "Number of days"]),
         "k": (["size", "category", "class"], ["small", "medium", "large"], False, ["", "Size of the car"])},
        ["Rent a car in {city} for {n} days.", "I need a {k} car in {city} for {n} days", "Book a car in {city}, {n} days.",
         "Get me a {k} rental car in {city} for {n} days"]),
    "train": (
        ["find_trains", "search_trains", "train_connections", "book_train"], ["Find train connections", "Search for trains", ""],
        {"a": (["from", "origin", "start", "departure"], "city", True, ["", "Where the train starts"]),
         "b": (["to", "destination", "arrival", "target"], "city", True, ["", "Where it goes"]),
         "d": (["date", "day", "when"], "day", False, ["", "Day of travel"])},
        ["Find a train from {a} to {b}.", "Trains from {a} to {b} {d}?", "When does the next train go from {a} to {b}?",
         "I want to go from {a} to {b} by train {d}", "Show me trains to {b} from {a}."]),
    "order_item": (
        ["order_item", "place_order", "create_order"], ["Order an item", "Place an order for a product"],
        {"p": (["item", "product", "article", "what"], "product", True, ["", "What to order"]),
         "n": (["quantity", "count", "number", "pieces"], "int", True, ["", "How many pieces"])},
        ["Order {n} {p}.", "Order {n} of {p} please", "I want to order {n} {p}", "Place an order for {n} {p}."]),
    "product_search": (
        ["search_products", "find_product", "product_search"], ["Search the shop for products", "Find products below a price"],
        {"q": (["query", "product", "name", "keyword"], "product", True, ["", "What to search for"]),
         "m": (["max_price", "price", "budget"], "int", False, ["", "Highest price"])},
        ["Find a {q} below {m} euros", "Search the shop for {q}.", "Show me a {q} under {m} dollars", "Do you sell a {q}?",
         "I am looking for a {q}"]),
    "library_book": (
        ["find_book", "search_books", "book_search", "lookup_book"], ["Find books", "Search books by title and author"],
        {"t": (["title", "book", "name"], "title", False, ["", "Title of the book"]),
         "a": (["author", "writer", "by"], "name", True, ["", "Who wrote it"])},
        ["Find books by {a}.", "Do you have the book {t} by {a}?", "Search for {t} by {a}", "What did {a} write?",
         "I want to read something by {a}"]),
    "movie": (
        ["find_movie", "movie_info", "get_movie", "search_movies"], ["Get facts about a movie", "Find a movie by title"],
        {"t": (["title", "movie", "film", "name"], "title", True, ["", "Title of the movie"]),
         "y": (["year", "release_year"], "int", False, ["", "Year of release"])},
        ["Tell me about the movie {t}.", "Find the film {t} from {y}", "Who plays in {t}?", "What is the movie {t} about?",
         "Look up the movie {t} of {y}."]),
    "transfer": (
        ["transfer_money", "send_money", "bank_transfer", "make_transfer"], ["Transfer money to somebody", "Send money", ""],
        {"n": (["amount", "sum", "value"], "number", True, ["", "How much"]),
         "c": (["currency", "unit"], "currency", False, ["", "Currency code"]),
         "w": (["to", "recipient", "receiver", "payee"], "name", True, ["", "Who gets the money"])},
        ["Send {n} {c} to {w}.", "Transfer {n} to {w}", "Pay {w} {n} {c}", "Please transfer {n} {c} to {w}."]),
    "invoice": (
        ["create_invoice", "write_invoice", "new_invoice"], ["Write an invoice for a customer", "Create an invoice"],
        {"w": (["customer", "client", "name", "company"], "name", True, ["", "Name of the customer"]),
         "n": (["amount", "total", "sum"], "number", True, ["", "Amount to pay"]),
         "d": (["due", "due_date", "deadline"], "isodate", False, ["", "Last day of payment"])},
        ["Create an invoice for {w} over {n}.", "Write {w} an invoice of {n}, due {d}", "Invoice {w} for {n} until {d}.",
         "New invoice: {w}, {n}"]),
    "vote": (
        ["create_poll", "start_poll", "new_poll"], ["Start a poll", "Create a poll with a question"],
        {"q": (["question", "topic", "title"], "phrase", True, ["", "The question"]),
         "n": (["hours", "duration", "duration_hours"], "int", False, ["", "How long it runs, in hours"])},
        ["Start a poll about {q}.", "Create a poll {q} for {n} hours", "New poll on {q}, {n} hours.", "Make a poll: {q}"]),
    "exercise": (
        ["log_workout", "add_workout", "track_exercise"], ["Log a workout", "Write down an exercise"],
        {"k": (["exercise", "sport", "activity"], ["running", "swimming", "cycling", "rowing", "walking"], True, ["", "What was done"]),
         "n": (["minutes", "duration", "duration_minutes"], "int", True, ["", "Minutes"])},
        ["I did {n} minutes of {k}.", "Log {n} minutes {k}", "Add a workout: {k}, {n} minutes", "Track {k} for {n} minutes."]),
    "light_color": (
        ["set_light_color", "change_color", "lamp_color"], ["Set the color of a lamp", "Change the color of the light"],
        {"r": (["room", "lamp", "where"], "room", True, ["", "Which room"]),
         "c": (["color", "colour"], "color", True, ["", "The color"])},
        ["Make the light in the {r} {c}.", "Set the {r} lamp to {c}", "Change the color in the {r} to {c}", "{c} light in the {r} please"]),
    "vacuum": (
        ["start_vacuum", "clean_room", "vacuum_room", "robot_clean"], ["Let the robot clean a room", "Start the vacuum robot"],
        {"r": (["room", "area", "place"], "room", True, ["", "Room to clean"]),
         "m": (["mode", "level"], ["quiet", "normal", "strong"], False, ["", "How strong"])},
        ["Clean the {r}.", "Vacuum the {r} please", "Start the robot in the {r}", "Clean the {r} in {m} mode.", "Vacuum the {r} on {m}"]),
    "service": (
        ["restart_service", "service_restart", "control_service"], ["Start, stop or restart a service", "Control a service on a server"],
        {"s": (["service", "name", "unit"], "word", True, ["", "Name of the service"]),
         "a": (["action", "command", "operation"], ["start", "stop", "restart"], True, ["", "What to do"])},
        ["{a} the service {s}.", "Please {a} {s}", "Can you {a} the {s} service?", "{a} {s} on the server"]),
    "logs": (
        ["get_logs", "read_logs", "show_logs", "tail_logs"], ["Show the log of a service", "Read log lines"],
        {"s": (["service", "source", "app", "name"], "word", True, ["", "Which service"]),
         "n": (["lines", "n", "limit", "count"], "int", False, ["", "How many lines"])},
        ["Show me the logs of {s}.", "Give me the last {n} lines of the {s} log", "Get {n} log lines of {s}", "What is in the log of {s}?"]),
    "deploy": (
        ["deploy", "deploy_app", "release_version", "rollout"], ["Deploy a version of an application", "Roll out a release"],
        {"a": (["app", "application", "project", "name"], "word", True, ["", "The application"]),
         "v": (["version", "tag", "release"], "code", True, ["", "The version"]),
         "e": (["environment", "env", "stage"], ["test", "staging", "production"], False, ["", "Where to"])},
        ["Deploy {a} in version {v}.", "Deploy version {v} of {a} to {e}", "Release {v} of {a}", "Roll out {a} {v} to {e} please"]),
    "branch": (
        ["create_branch", "new_branch", "git_branch"], ["Create a git branch", "Make a new branch"],
        {"n": (["name", "branch", "branch_name"], "word", True, ["", "Name of the branch"]),
         "b": (["base", "from", "source"], "word", False, ["", "Branch to start from"])},
        ["Create a branch {n}.", "Make a new branch called {n} from {b}", "New branch {n} based on {b}", "git branch {n}"]),
    "download": (
        ["download_file", "fetch_url", "download", "get_page"], ["Download a page", "Fetch the content of a URL", ""],
        {"u": (["url", "link", "address"], "url", True, ["", "What to download"])},
        ["Download {u}", "Fetch {u} please", "Get me the page {u}", "What is on {u}?", "Open {u}"]),
    "resize": (
        ["resize_image", "scale_image", "image_resize"], ["Resize an image", "Change the size of a picture"],
        {"p": (["path", "image", "file", "picture"], "path", True, ["", "The image file"]),
         "w": (["width", "w", "new_width"], "int", True, ["", "Width in pixels"]),
         "h": (["height", "h", "new_height"], "int", True, ["", "Height in pixels"])},
        ["Resize {p} to {w} x {h}.", "Scale the image {p} to {w} by {h}", "Make {p} {w} pixels wide and {h} high",
         "Change the size of {p} to {w}x{h}"]),
    "contact_add": (
        ["add_contact", "save_contact", "create_contact", "new_contact"], ["Add a person to the address book", "Save a contact"],
        {"n": (["name", "full_name", "person"], "name", True, ["", "Name of the person"]),
         "p": (["phone", "phone_number", "number"], "phone", False, ["", "Phone number"]),
         "e": (["email", "mail", "email_address"], "email", False, ["", "Email address"])},
        ["Add {n} to my contacts.", "Save {n} with the number {p}", "New contact {n}, {e}", "Add the contact {n}, phone {p}, email {e}",
         "Save the number {p} for {n}."]),
    "birthday": (
        ["save_birthday", "add_birthday", "set_birthday"], ["Remember a birthday", "Save the birthday of a person"],
        {"n": (["name", "person", "who"], "first", True, ["", "Whose birthday"]),
         "d": (["date", "day", "birthday"], "date", True, ["", "The day"])},
        ["{n} has a birthday on {d}.", "The birthday of {n} is {d}", "Remember that {n} was born on {d}", "Save the birthday of {n}: {d}"]),
    "doctor": (
        ["book_appointment", "make_appointment", "schedule_visit"], ["Make an appointment with a doctor", "Book a visit"],
        {"n": (["doctor", "name", "with"], "name", True, ["", "Name of the doctor"]),
         "d": (["date", "day", "on"], "date", True, ["", "Day of the visit"]),
         "c": (["time", "hour", "at"], "clock", False, ["", "Time of the visit"])},
        ["Make an appointment with {n} on {d}.", "I need to see {n} on {d} at {c}", "Book a visit to {n} for {d}, {c}",
         "Appointment with Dr. {n} on {d} please"]),
    "height_convert": (
        ["convert_length", "length_converter", "convert_units"], ["Convert a length", "Convert between units of length"],
        {"v": (["value", "length", "number", "amount"], "number", True, ["", "The length"]),
         "a": (["from", "from_unit", "source_unit"], ["meters", "feet", "miles", "kilometers", "inches"], True, ["", "Unit of the length"]),
         "b": (["to", "to_unit", "target_unit"], ["meters", "feet", "miles", "kilometers", "inches"], True, ["", "Unit wanted"])},
        ["Convert {v} {a} to {b}.", "How much is {v} {a} in {b}?", "What is {v} {a} in {b}?", "{v} {a} in {b}?"]),
    "parking": (
        ["find_parking", "search_parking", "parking_spots"], ["Find parking near a place", "Search for free parking"],
        {"p": (["location", "near", "address", "place"], "place", True, ["", "Where"]),
         "n": (["hours", "duration"], "int", False, ["", "How many hours"])},
        ["Find parking near {p}.", "Where can I park near {p}?", "I need parking at {p} for {n} hours", "Parking for {n} hours near {p}"]),
    "plant": (
        ["water_plants", "start_watering", "irrigate"], ["Water the plants", "Start the sprinkler"],
        {"z": (["zone", "area", "bed"], "word", True, ["", "Which part of the garden"]),
         "n": (["minutes", "duration", "time"], "int", True, ["", "How long, in minutes"])},
        ["Water the {z} for {n} minutes.", "Start the sprinkler at the {z}, {n} minutes", "Please water {z} for {n} minutes"]),
    "score": (
        ["get_score", "match_result", "game_score"], ["Get the result of a match", "Score of a game"],
        {"t": (["team", "club", "name"], "title", True, ["", "The team"]), "d": (["date", "day"], "day", False, ["", "Day of the match"])},
        ["How did {t} play?", "What is the score of {t}?", "How did {t} play {d}?", "Result of {t} {d}", "Did {t} win {d}?"]),
    "summary": (
        ["summarize_text", "summarize", "shorten"], ["Summarize a text", "Make a short summary"],
        {"t": (["text", "content", "input"], "text", True, ["", "The text"]), "n": (["sentences", "max_sentences", "length"], "int", False, ["", "How many sentences"])},
        ["Summarize this: {t}", "Summarize \"{t}\" in {n} sentences", "Give me a summary of {t}", "Shorten {t} to {n} sentences"]),
    "password": (
        ["make_password", "generate_password", "new_password"], ["Make a random password", "Generate a password"],
        {"n": (["length", "characters", "size"], "int", True, ["", "Number of characters"])},
        ["Make a password of {n} characters.", "Generate a password with {n} characters", "I need a password, {n} characters long", "New password of length {n}"]),
    # Only for evaluation:
    "hotel": (
        ["book_hotel", "reserve_hotel", "find_hotels"], ["Book a hotel in a city", "Find hotels"],
        {"city": CITY, "n": (["nights", "n_nights"], "int", True, ["", "Number of nights"])},
        ["Book a hotel in {city} for {n} nights.", "I need a hotel in {city} for {n} nights", "Find a hotel in {city}, {n} nights."]),
    "shopping": (
        ["add_to_cart", "cart_add", "buy_product"], ["Add a product to the shopping cart", "Put a product in the cart"],
        {"p": (["product", "item", "product_name"], "product", True, ["", "The product"]),
         "n": (["quantity", "count", "amount"], "int", True, ["", "How many"])},
        ["Add {n} {p} to my cart.", "Put {n} of the product {p} in the cart", "I want to buy {n} {p}"]),
    "restaurant": (
        ["reserve_table", "book_table", "find_restaurant"], ["Reserve a table in a restaurant", "Book a restaurant table"],
        {"r": (["restaurant", "name", "place"], "title", True, ["", "Name of the restaurant"]),
         "n": (["people", "guests", "party_size"], "int", True, ["", "Number of guests"]),
         "c": (["time", "at"], "clock", False, ["", "Time"])},
        ["Reserve a table at {r} for {n} people.", "Book a table for {n} at {r} at {c}", "Table for {n} at {r} please"]),
    "package": (
        ["track_package", "get_shipment", "parcel_status"], ["Track a parcel", "Get the position of a package"],
        {"id": (["tracking_number", "package_id", "number"], "code", True, ["", "Tracking number"])},
        ["Track the package {id}.", "Where is my parcel {id}?", "What happened to package {id}?"]),
    "ticket": (
        ["create_ticket", "open_ticket", "report_bug"], ["Open a support ticket", "Report a problem to support"],
        {"t": (["title", "summary", "subject"], "phrase", True, ["", "Short summary"]),
         "p": (["severity", "priority"], ["low", "normal", "urgent"], True, ["", "How urgent"])},
        ["Open a ticket {t} with severity {p}.", "Create a ticket: {t}, {p}", "Report the bug {t} as {p}"]),
    "temperature_convert": (
        ["convert_temperature", "temperature_converter"], ["Convert a temperature", "Convert between units of temperature"],
        {"v": (["value", "degrees", "temperature"], "number", True, ["", "Degrees"]),
         "u": (["to_unit", "target_unit", "to"], ["celsius", "fahrenheit", "kelvin"], True, ["", "Target unit"])},
        ["Convert {v} degrees to {u}.", "What is {v} degrees in {u}?", "How much is {v} degrees in {u}?"]),
}
HELD_OUT = ("hotel", "shopping", "restaurant", "package", "ticket", "temperature_convert")
ROOMS = ("kitchen|bedroom|living room|bathroom|garage|office|hall|garden|cellar|attic|dining room").split("|")
TICKERS = "AAPL MSFT GOOG AMZN NVDA TSLA IBM INTC AMD NFLX Apple Microsoft Tesla Intel Siemens".split()
