# SPDX-License-Identifier: Apache-2.0
"""Word lists and word makers: the raw material of the training dialogues.

A model this small learns to *copy* only when nothing else works. So most names and values are
drawn from generators whose range is far larger than the training run, and the fixed lists are cut
in two: `Words(rng, held_out=True)` uses the part that training never sees. Made-up words are shared
by chance only.
"""

from __future__ import annotations

import functools
import random
import string

FIRST_NAMES = """Anna Boris Clara David Elena Felix Greta Hugo Ida Jonas Karin Luca Maria Nils Olga
Peter Rosa Simon Tara Viktor Wanda Yusuf Zoe Amir Bianca Carlos Diana Emil Fatima Gustav Hanna Ivan
Julia Kofi Lena Marco Nadia Oscar Priya Quentin Rita Sven Tomas Ursula Vera Walter Xenia Yara Alice
Bob Carol Dan Eve Frank Grace Heidi Judy Mallory Niaj Trent Ahmed Bella Chen Dora Ella Finn Gina
Henry Isla Jack Kate Leo Mia Noah Olivia Paul Quinn Ruth Sara Tim Uma Violet Will Ada Ben Cleo
Dimitri Esther Farid Gwen Hiro Ingrid Jamal Kenji Leila Mateo Nora Omar Paula Rafael Sofia Theo
Alan Barbara Charles Dennis Edsger Linus Margaret John Jane James Emma Lucas Sophie Max Laura Jan""".split()
LAST_NAMES = """Smith Miller Garcia Novak Schmidt Rossi Kowalski Jensen Dubois Silva Tanaka Kim Patel
Ivanov Andersson Murphy Weber Costa Lopez Horvat Nguyen Okafor Mensah Haddad Cohen Larsen Virtanen
Popescu Moreau Ricci Bauer Fischer Wagner Becker Lindqvist Eriksen Petrov Sato Suzuki Yamamoto Li
Wang Zhang Singh Sharma Khan Ali Hassan Brown Jones Taylor Wilson Davies Evans Thomas Johnson White
Walker Hughes Green Hall Lewis Clark Young King Wright Baker Carter Collins Cook Doe Turing Hopper
Lovelace Knuth Ritchie Torvalds Keller Vogel Roth Brandt Hansen Nielsen Berg Holm Lund Dahl""".split()
CITIES = """Oslo|Paris|London|Berlin|Madrid|Rome|Vienna|Prague|Lisbon|Dublin|Athens|Warsaw|Helsinki|
Stockholm|Copenhagen|Budapest|Brussels|Amsterdam|Zurich|Geneva|Milan|Naples|Turin|Munich|Hamburg|
Cologne|Frankfurt|Lyon|Marseille|Nice|Barcelona|Valencia|Seville|Porto|Krakow|Gdansk|Riga|Vilnius|
Tallinn|Sofia|Bucharest|Belgrade|Zagreb|Ljubljana|Bratislava|Kyiv|Istanbul|Ankara|Cairo|Tunis|Lagos|
Accra|Nairobi|Cape Town|Dakar|Tokyo|Osaka|Kyoto|Seoul|Beijing|Shanghai|Hong Kong|Taipei|Bangkok|
Hanoi|Singapore|Jakarta|Manila|Delhi|Mumbai|Chennai|Karachi|Lahore|Dhaka|Tehran|Baghdad|Dubai|Doha|
Riyadh|Jerusalem|Sydney|Melbourne|Perth|Brisbane|Auckland|Wellington|New York|Boston|Chicago|Denver|
Seattle|Portland|San Francisco|Los Angeles|San Diego|Houston|Dallas|Austin|Miami|Atlanta|Toronto|
Montreal|Vancouver|Calgary|Mexico City|Havana|Bogota|Lima|Quito|Santiago|Buenos Aires|Montevideo|
Sao Paulo|Rio de Janeiro|Bergen|Trondheim|Malmo|Gothenburg|Aarhus|Bremen|Leipzig|Dresden|Graz|
Salzburg|Basel|Bern|Ghent|Antwerp|Utrecht|Rotterdam|Reykjavik|Edinburgh|Glasgow|Cardiff|Belfast|
Manchester|Liverpool|Leeds|Oxford|Cambridge|Cork|Galway|Brno|Lodz|Poznan|Tampere|Turku|Moscow""".replace(
    "\n", "").split("|")
COUNTRIES = """Norway|Sweden|Finland|Denmark|Germany|France|Spain|Italy|Portugal|Greece|Poland|Austria|
Hungary|Ireland|Iceland|Japan|China|India|Brazil|Canada|Mexico|Chile|Peru|Kenya|Egypt|Ghana|Turkey|
Belgium|Croatia|Estonia|Latvia|Morocco|Vietnam|Thailand|Nepal|Cuba|Australia|New Zealand""".replace(
    "\n", "").split("|")
LANGUAGES = """English French German Spanish Italian Norwegian Swedish Finnish Danish Polish Czech
Russian Greek Turkish Arabic Hindi Japanese Chinese Korean Portuguese Dutch Hungarian Latin""".split()
COLORS = """red blue green yellow black white orange purple pink brown grey silver golden violet teal
cyan magenta beige""".split()
MONTHS = """January February March April May June July August September October November
December""".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
CURRENCIES = "USD EUR GBP JPY NOK SEK DKK CHF CAD AUD PLN CZK INR BRL CNY".split()

# Nouns that tools deal in. Two-word nouns come from joining an adjective-like word to one of these.
NOUNS = """account address agenda alarm album alert animal answer apartment appointment archive
article asset audit backup badge balance band bank basket battery bill bird board boat book booking
bottle box branch bridge broadcast budget bug building bus cable cache calendar call camera campaign
candidate car card cart case castle category certificate channel chapter chart chat check city class
client clock cloud cluster coach code coin color comment commit company concert contact container
contract cookie copy country coupon course currency customer database dataset deadline delivery
deposit desk device diagram dictionary dinner directory discount disk distance doctor document
domain door draft driver drone email employee engine entry error event exam exchange expense
experiment factory fan feed ferry field file film filter fish flag flight flower folder font forecast
forest form fridge friend fuel function game garage garden gate gift glossary goal grade graph group
guest guide harbor hash headline heater history holiday horse hospital host hotel house humidity
image index ingredient inventory invoice island issue item job joke journal key kitchen label lake
lamp language laptop lawyer layer leak lecture lesson letter level library license light limit line
link list loan location lock log luggage machine mail map market match material meal measurement
medicine meeting member memo menu message meter metric mirror model module monitor mountain movie
museum music network newsletter note notification number office offer order origin oven package page
painting parcel park parking partner passport password patch path patient payment pension permit
person pet phone photo picture pipeline place plan planet plant platform playlist plugin podcast poem
point poll pool port post poster price printer product profile project promise proof property
protocol pump puzzle quality query question queue quiz quota quote radio rain rate reading receipt
recipe record refund region registry release reminder rental repair reply report request reservation
resource restaurant result review reward ride river road robot role room route rule salary sale
sample satellite scale schedule school score screen script season seat secret section seminar sensor
server service session setting shelf ship shipment shop signal site sketch slot snapshot song sound
source speaker stage station statue status stock stone storage store storm story stream street
student subscription summary supplier survey switch symbol table tag target task tax taxi teacher
team temperature template tenant test theater thermostat ticket tide time timer title token tool
topic tour tower track trail train transaction transcript transfer translation trip truck tunnel
tutorial unit update upload usage user vacation vaccine valve vehicle vendor venue version video view
village visitor voice volume voucher wallet warehouse warning watch water wave weather website weight
widget window wine word workflow workout zone""".split()
ADJECTIVES = """active annual big blue central daily dark deep digital early electric empty fast final
first fresh full global great green grey happy heavy hidden high home hot internal last late latest
light little local long lost main major medical mobile monthly nearby new next nice old online open
outdoor personal plain private public quick quiet random recent red rough round royal short simple
slow small smart smooth social soft solar special spare strong sweet tall tiny urban warm weekly
white wild winter wooden yearly young""".split()
# verb -> other ways in which a user may ask for the same thing; {n} is "the noun"
VERBS = {
    "get": ["Get {n}", "Show me {n}", "Give me {n}", "I want to see {n}", "Tell me {n}", "What is {n}"],
    "fetch": ["Fetch {n}", "Get me {n}", "Bring me {n}", "Get {n}"],
    "find": ["Find {n}", "Look for {n}", "Search for {n}", "I am looking for {n}", "Find me {n}"],
    "search": ["Search {n}", "Search for {n}", "Look for {n}", "Find {n}"],
    "create": ["Create {n}", "Make {n}", "Set up {n}", "I need {n}", "Add {n}"],
    "add": ["Add {n}", "Put in {n}", "Create {n}"],
    "delete": ["Delete {n}", "Remove {n}", "Get rid of {n}", "Erase {n}"],
    "remove": ["Remove {n}", "Delete {n}", "Take away {n}"],
    "update": ["Update {n}", "Change {n}", "Edit {n}", "Modify {n}"],
    "set": ["Set {n}", "Change {n}", "Adjust {n}"],
    "send": ["Send {n}", "Dispatch {n}"],
    "list": ["List {n}", "Show {n}", "List all of {n}"],
    "check": ["Check {n}", "Have a look at {n}", "Please verify {n}", "How is {n}"],
    "start": ["Start {n}", "Begin {n}", "Launch {n}", "Run {n}"],
    "stop": ["Stop {n}", "End {n}", "Halt {n}"],
    "open": ["Open {n}", "Show {n}"], "close": ["Close {n}", "Shut {n}"],
    "book": ["Book {n}", "Reserve {n}", "I would like to book {n}"],
    "cancel": ["Cancel {n}", "Call off {n}"], "order": ["Order {n}", "Buy {n}", "I want to order {n}"],
    "compute": ["Compute {n}", "Calculate {n}", "Work out {n}"],
    "convert": ["Convert {n}"], "rename": ["Rename {n}"], "copy": ["Copy {n}", "Duplicate {n}"],
    "move": ["Move {n}"], "export": ["Export {n}", "Save {n}"], "import": ["Import {n}", "Load {n}"],
    "print": ["Print {n}"], "share": ["Share {n}"], "track": ["Track {n}", "Follow {n}", "Where is {n}"],
    "schedule": ["Schedule {n}", "Plan {n}"], "rate": ["Rate {n}"], "pay": ["Pay {n}"],
    "read": ["Read {n}", "Read me {n}"], "write": ["Write {n}"], "play": ["Play {n}", "Start {n}"],
    "scan": ["Scan {n}"], "lock": ["Lock {n}"], "unlock": ["Unlock {n}"], "validate": ["Validate {n}",
    "Verify {n}"], "approve": ["Approve {n}"], "assign": ["Assign {n}"], "merge": ["Merge {n}"],
    "measure": ["Measure {n}"], "estimate": ["Estimate {n}"], "inspect": ["Inspect {n}"],
    "restart": ["Restart {n}"], "archive": ["Archive {n}"], "restore": ["Restore {n}"],
    "lookup": ["Look up {n}", "Find {n}"], "register": ["Register {n}"], "describe": ["Describe {n}"],
    "publish": ["Publish {n}"], "count": ["Count {n}", "How many of {n}"], "upload": ["Upload {n}"],
    "download": ["Download {n}"], "compare": ["Compare {n}"], "summarize": ["Summarize {n}"],
}
# Plain words for text to copy, titles, messages, search phrases.
PLAIN = """the a of and to in that it is was for on are with as his they at be this from or had by but
some what there we can out other were all your when up use word how said each she which do their if
will way about many then them would write like so these her long make thing see him two has look more
day could go come did my sound no most number who over know than call first people may down side been
now find any new work part take get place made live where after back little only round man year came
show every good me give our under name very through just form much great think say help low line
before turn cause same mean differ move right boy old too does tell sentence set three want air well
also play small end put home read hand port large spell add even land here must big high such follow
act why ask men change went light kind off need house picture try us again animal point mother world
near build self earth father head stand own page should country found answer school grow study still
learn plant cover food sun four thought let keep eye never last door between city tree cross since
hard start might story saw far sea draw left late run while press close night real life few stop open
seem together next white children begin got walk example ease paper often always music those both
mark book letter until mile river car feet care second group carry took rain eat room friend began
idea fish mountain north once base hear horse cut sure watch color face wood main enough plain girl
usual young ready above ever red list though feel talk bird soon body dog family direct pose leave
song measure state product black short numeral class wind question happen complete ship area half
rock order fire south problem piece told knew pass farm top whole king size heard best hour better
true during hundred am remember step early hold west ground interest reach fast five sing listen six
table travel less morning ten simple several vowel toward war lay against pattern slow center love
person money serve appear road map science rule govern pull cold notice voice fall power town fine
certain fly unit lead cry dark machine note wait plan figure star box noun field rest correct able
pound done beauty drive stood contain front teach week final gave green oh quick develop sleep warm
free minute strong special mind behind clear tail produce fact street inch lot nothing course stay
wheel full force blue object decide surface deep moon island foot yet busy test record boat common
gold possible plane age dry wonder laugh thousand ago ran check game shape yes hot miss brought heat
snow bed bring sit perhaps fill east weight language among""".split()
PRODUCTS = """lamp chair table laptop phone jacket bicycle camera guitar backpack watch printer kettle
blender sofa desk tent mirror keyboard monitor headset umbrella toaster carpet drill ladder helmet
notebook scarf violin telescope heater fan mug pillow blanket speaker router tripod""".split()
FOODS = """pizza pasta soup salad bread cheese rice beans apple banana mango sushi curry burger steak
omelette pancake waffle tofu salmon lasagna risotto dumplings tacos paella goulash""".split()

# Letters outside ASCII are two tokens and more each; without them in training they do not copy.
ACCENTED = """José Müller Zürich Søren Åse François Jürgen Málaga Córdoba Tromsø Łódź Gdańsk Kraków Düsseldorf
São Björn Zoë Chloë René Kääriäinen Renée Beyoncé Noël Köln Tórshavn Ålesund Århus Bodø Čapek Dvořák café naïve über
señor façade jalapeño crème brûlée smörgås élan déjà Москва Київ Αθήνα 東京 北京 서울 日本""".split()
SHORT = "don't|it's|I'm|can't|we'll|you're|let's|isn't|they've|o'clock|e.g.|vs.|re-read|well-known|(maybe)|[sic]|50%|R&D|C++|#1|@home|~ok|<b>|a/b|x=y|1,000|3:2|v2.0".split("|")

ONSETS = "b c d f g h j k l m n p r s t v w z br cr dr fl gr kl pl pr sk sl sn st tr th sh ch qu".split()
VOWELS = "a e i o u a e i o ai ea io ou oo".split()
CODAS = ["", "", "", "n", "r", "l", "s", "m", "t", "k", "x", "nd", "rk", "st", "ng"]


def split_list(words: list[str], held_out: bool) -> list[str]:
    """Every 8th word of a list is only for evaluation, the others only for training."""
    return [w for i, w in enumerate(words) if (i % 8 == 5) == held_out]


@functools.cache
def letter_chain() -> tuple[dict[str, list[str]], frozenset[str]]:
    """Which letters follow two letters in the words of training ("$" ends a word), and the held-out words."""
    lists = (NOUNS, ADJECTIVES, PLAIN, sorted(VERBS))
    known = [w.lower() for words in lists for w in (words if words is PLAIN else split_list(words, False))]
    held_out = {w.lower() for words in (*lists, FIRST_NAMES, LAST_NAMES, CITIES) for w in words} - set(known)
    follow: dict[str, list[str]] = {}
    for word in known:
        if word.isascii() and word.isalpha():
            padded = "^^" + word + "$"
            for i in range(len(word) + 1):
                follow.setdefault(padded[i:i + 2], []).append(padded[i + 2])
    return follow, frozenset(held_out)


class Words:
    """Draws words and values with one random generator, from the training or the held-out lists.

    In training nearly half of all words are made up: a model that meets the same thousand words again
    and again learns to copy those, and not to copy.
    """

    def __init__(self, rng: random.Random, held_out: bool = False) -> None:
        self.rng = rng
        self.held_out = held_out
        self.made_up = 0.15 if held_out else 0.55
        self.nouns = split_list(NOUNS, held_out)
        self.adjectives = split_list(ADJECTIVES, held_out)
        self.first = split_list(FIRST_NAMES, held_out)
        self.last = split_list(LAST_NAMES, held_out)
        self.cities = split_list(CITIES, held_out)
        self.products = split_list(PRODUCTS, held_out)
        self.foods = split_list(FOODS, held_out)
        self.plain = PLAIN

    def pick(self, items):  # noqa: ANN001, ANN201 - any sequence, any item
        return items[int(self.rng.random() * len(items))]

    def chance(self, p: float) -> bool:
        return self.rng.random() < p

    def pseudo(self, n_syllable: int = 0) -> str:
        """A pronounceable word that exists nowhere; about 10^6 of them per two syllables."""
        n = n_syllable or self.pick((1, 1, 2, 2))
        word = "".join(self.pick(ONSETS) + self.pick(VOWELS) + self.pick(CODAS) for _ in range(n))
        return word if len(word) > 2 else word + self.pick("nrlst")

    def blend(self) -> str:
        """A word that could be English: three letters in a row occur in a word of training."""
        follow, held_out = letter_chain()
        while True:
            word = "^^"
            while not word.endswith("$") and len(word) < 14:
                word += self.pick(follow[word[-2:]])
            word = word.strip("^$")
            if 2 < len(word) < 11 and word not in held_out:
                return word

    def invented(self) -> str:
        """A made-up word of either kind."""
        return self.pseudo() if self.chance(0.4) else self.blend()

    def noun(self) -> str:
        return self.invented() if self.chance(self.made_up) else self.pick(self.nouns)

    def name_like(self) -> str:
        return (self.pseudo(2) if self.chance(0.6) else self.blend()).capitalize()

    def first_name(self) -> str:
        return self.name_like() if self.chance(self.made_up) else self.pick(self.first)

    def full_name(self) -> str:
        last = self.name_like() if self.chance(self.made_up) else self.pick(self.last)
        return self.first_name() + " " + last

    def city(self) -> str:
        x = self.rng.random()
        if x < 0.05:                        # "San Francisco, CA"
            tail = self.pick(COUNTRIES) if self.chance(0.5) else self.pick(string.ascii_uppercase) + self.pick(string.ascii_uppercase)
            return self.pick(self.cities) + ", " + tail
        if x < 0.07:
            return self.pick(ACCENTED)
        return self.name_like() if self.chance(self.made_up) else self.pick(self.cities)

    def country(self) -> str:
        return self.name_like() if self.chance(0.3) else self.pick(COUNTRIES)

    def word(self) -> str:
        x = self.rng.random()
        if x < 0.02:
            return self.pick(ACCENTED) if x < 0.008 else self.pick(SHORT)
        if self.chance(self.made_up):
            return self.invented()
        x = self.rng.random()
        return self.pick(self.plain) if x < 0.5 else self.pick(self.nouns) if x < 0.9 else self.pick(self.adjectives)

    def product(self) -> str:
        return self.invented() if self.chance(self.made_up) else self.pick(self.products)

    def food(self) -> str:
        return self.invented() if self.chance(self.made_up) else self.pick(self.foods)

    def phrase(self, low: int = 1, high: int = 4) -> str:
        return " ".join(self.word() for _ in range(self.rng.randint(low, high)))

    def integer(self) -> int:
        return self.rng.randint(*self.pick(((1, 9), (1, 20), (10, 99), (100, 999), (1000, 99999))))

    def decimal(self) -> str:
        digits = self.pick((1, 1, 2))
        return f"{self.rng.randint(0, 99)}.{self.rng.randint(1, 10 ** digits - 1):0{digits}d}"

    def digits(self, low: int = 3, high: int = 8) -> str:
        return "".join(self.pick(string.digits) for _ in range(self.rng.randint(low, high)))

    def code(self) -> str:
        """Order numbers, flight codes, keys: what must be copied character by character."""
        upper = "".join(self.pick(string.ascii_uppercase) for _ in range(self.pick((1, 2, 2, 3))))
        number = self.digits(2, 5)
        return self.pick((upper + "-" + number, upper + number, "#" + number,
                          upper + "-" + number + "-" + self.pick(string.ascii_uppercase)))

    def email(self) -> str:
        user = self.first_name().lower()
        user += self.pick(("", "." + self.pseudo(1), "_" + self.pick(self.last).lower(), self.digits(1, 3)))
        host = self.pick(("example", "mail", self.pseudo(), self.pick(self.nouns)))
        return f"{user}@{host}.{self.pick(('com', 'org', 'net', 'io', 'de', 'no', 'eu'))}"

    def phone(self) -> str:
        return self.pick(("+{} {} {}", "{}-{}-{}", "{} {} {}")).format(
            self.digits(2, 2), self.digits(3, 3), self.digits(3, 4))

    def url(self) -> str:
        return f"https://{self.pseudo()}.{self.pick(('com', 'org', 'net', 'io'))}" + (
            "/" + self.noun() if self.chance(0.5) else "")

    def path(self) -> str:
        ext = self.pick(("txt", "csv", "json", "md", "log", "pdf", "py", "c"))
        head = self.pick(("", "/tmp/", "/home/" + self.pseudo() + "/", self.noun() + "/", "/var/log/"))
        return f"{head}{self.noun()}{self.pick(('', '_' + self.noun(), self.digits(1, 2)))}.{ext}"

    def iso_date(self) -> str:
        return f"{self.rng.randint(1990, 2039)}-{self.rng.randint(1, 12):02d}-{self.rng.randint(1, 28):02d}"

    def date(self) -> str:
        day, month = self.rng.randint(1, 28), self.pick(MONTHS)
        return self.pick((self.iso_date(), f"{day} {month} {self.rng.randint(1990, 2039)}",
                          f"{month} {day}", f"{day} {month}"))

    def day(self) -> str:
        return self.pick(("today", "tomorrow", "tonight") + tuple(DAYS))

    def clock(self) -> str:
        return self.pick((f"{self.rng.randint(0, 23):02d}:{self.rng.randint(0, 59):02d}",
                          f"{self.rng.randint(1, 12)} {self.pick(('am', 'pm'))}",
                          f"{self.rng.randint(1, 12)}:{self.rng.randint(10, 59)} pm"))

    def price(self) -> str:
        n = self.rng.randint(1, 999)
        return self.pick((f"${n}", f"{n} euros", f"${n}.{self.rng.randint(10, 99)}", f"{n} dollars",
                          f"{n} EUR", f"{n} USD"))

    def value(self, kind: str):  # noqa: ANN201 - str, int, float or bool, by kind
        """A value of one of the kinds that parameters and facts have."""
        if kind == "int":
            return self.integer()
        if kind == "number":
            return float(self.decimal()) if self.chance(0.6) else self.integer()
        if kind == "bool":
            return self.chance(0.5)
        make = {"city": self.city, "name": self.full_name, "first": self.first_name, "word": self.word,
                "phrase": self.phrase, "code": self.code, "email": self.email, "date": self.date,
                "day": self.day, "clock": self.clock, "phone": self.phone, "url": self.url,
                "path": self.path, "country": self.country, "price": self.price,
                "text": lambda: self.phrase(2, 5), "pseudo": self.invented,
                "language": lambda: self.pick(LANGUAGES), "currency": lambda: self.pick(CURRENCIES),
                "color": lambda: self.pick(COLORS), "product": self.product,
                "food": self.food, "title": lambda: self.phrase(1, 3).title(),
                "isodate": self.iso_date}[kind]
        return make()
